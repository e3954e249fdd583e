"""Page of the results of a flight."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.running import COMPILATIONS

_TORCH = "torch graph"
_COMPILED, _IN_GRAPH = "torch.compile", ", in a graph"
_N_SLOWEST = 5
# A library that is this many times further off than storing tensors in float16 is looked at.
_FAR = 3


def write(results: Path, into: Path) -> Path:
    """Write ``report.md`` and ``report.json`` into a folder named by device and date.

    Args:
        results: File of the results of a run.

    Returns:
        The page.
    """
    flown = json.loads(results.read_text())
    name = re.sub(r"[^a-z0-9]+", "-", _device(flown).lower()).strip("-")
    folder = into / f"{name}-{flown['date'][:10]}"
    folder.mkdir(parents=True, exist_ok=True)
    steps = {
        name: {key: value for key, value in step.items() if key != "log"}
        for name, step in flown["steps"].items()
    }
    (folder / "report.json").write_text(json.dumps({**flown, "steps": steps}, indent=1) + "\n")
    page = folder / "report.md"
    page.write_text(as_markdown(flown))
    return page


def as_markdown(results: Mapping[str, Any]) -> str:
    """Return the page; times without a unit are microseconds."""
    steps, flight = results["steps"], results["flight"]
    rows = [(name, step["status"], _us(step.get("secs"))) for name, step in steps.items()]
    parts = [
        f"# Flight of {results['date']} on {_device(results)}\n",
        f"Libraries for `{flight['target']}` of commit {flight['commit']}, TVM {flight['tvm']}; "
        f"{results['secs']:.0f} s. [Definitions](../README.md#definitions)\n",
        _table(("step", "state", "s"), rows),
        _self_test(results),
        *(_network(name, results) for name in flight["networks"]),
        _agreement(_facts(results, "agreement")),
        "".join(_failures(name, step) for name, step in steps.items()),
    ]
    return "\n".join(part for part in parts if part)


def as_summary(results: Mapping[str, Any]) -> str:
    """Return the seconds of the steps, why some failed, and a row for each network."""
    steps = results["steps"]
    secs = ", ".join(f"{name} {step.get('secs', 0):.0f}" for name, step in steps.items())
    rows = []
    for name in results["flight"]["networks"]:
        for step, starts in (("measure", ""), ("race", _COMPILED)):
            facts = _facts(results, f"{step}-{name}")
            times = {label: t["device"]["median"] for label, t in facts.get("times_us", {}).items()}
            peer = times.get(_TORCH)
            rows += [
                (name, label, _us(us), _us(peer and us / peer, 2),
                 _error(facts.get("error", {}).get(label)))
                for label, us in times.items()
                if label.startswith(starts) and not label.endswith(_IN_GRAPH)
            ]  # fmt: skip
    failures = "".join(_failures(name, step) for name, step in steps.items())
    heads = ("network", "runtime", "us", f"over {_TORCH}", "error")
    agreed = _agreement_counts(_facts(results, "agreement"))
    return f"s: {secs}\n{failures}{_table(heads, rows)}{agreed}"


def _agreement_counts(facts: Mapping[str, Any]) -> str:
    failed = sorted(name for name, each in facts.items() if "error" in each)
    far = sorted(
        name
        for name, each in facts.items()
        if not each.get("error_of_norm", 0.0) <= max(_FAR * each.get("float16_error", 0.0), 1e-3)
    )
    unstable = sorted(n for n, each in facts.items() if each.get("equal_replays", 20) != 20)
    return (
        f"agreement: {len(facts)} libraries; failed: {failed}; error above {_FAR} times that of "
        f"float16: {far}; unequal replays: {unstable}\n"
    )


def _device(results: Mapping[str, Any]) -> str:
    facts = _facts(results, "self-test")
    return str(facts.get("device") or results["gpu_before"].get("name") or results["device"])


def _facts(results: Mapping[str, Any], step: str) -> Mapping[str, Any]:
    facts: Mapping[str, Any] = results["steps"].get(step, {}).get("facts", {})
    return facts


def _self_test(results: Mapping[str, Any]) -> str:
    facts = _facts(results, "self-test")
    rows = [*facts.get("versions", {}).items()]
    for when in ("before", "after"):
        rows += [(f"{key}, {when}", value) for key, value in results[f"gpu_{when}"].items()]
    rows += [("node of a graph, us", _us(facts.get("node_us"), 2))]
    for key, unit in (("copy_gb_per_sec", "copy, GB/s"), ("product_tflops", "product, TFLOP/s")):
        rows += [(f"{unit}, {size}", _us(value)) for size, value in facts.get(key, {}).items()]
    return _table(("self-test", ""), rows)


def _network(name: str, results: Mapping[str, Any]) -> str:
    measured, raced = (_facts(results, f"{step}-{name}") for step in ("measure", "race"))
    parts = [f"## {name}\n", _times(measured)]
    if "times_us" in raced:
        compiled = [
            f"{mode}: {_facts(results, f'{step}-{name}').get('compile_secs', 0):.0f} s"
            for step, mode in COMPILATIONS.items()
        ]
        parts += [f"In turns with `torch.compile` in CUDA graphs; {', '.join(compiled)}:\n"]
        parts += [_times(raced)]
    parts += [_traces(measured["kernels"])] if measured.get("kernels") else []
    counted = _facts(results, f"ncu-{name}")
    if counted:
        heads = list(counted["kernels"][0])
        rows = [[kernel.get(head, "") for head in heads] for kernel in counted["kernels"]]
        parts += [f"Nsight Compute, {counted['library']}:\n", _table(heads, rows)]
    return "\n".join(parts)


def _agreement(facts: Mapping[str, Any]) -> str:
    heads = ("library of the corpus", "error", "error of float16", "equal replays", "s")
    rows = [
        (name, _error(each.get("error_of_norm")), _error(each.get("float16_error")),
         each.get("equal_replays", each.get("error", "").strip()[-120:]), _us(each.get("secs")))
        for name, each in facts.items()
    ]  # fmt: skip
    return _table(heads, rows) if rows else ""


def _times(facts: Mapping[str, Any]) -> str:
    times = facts.get("times_us", {})
    peer = times.get(_TORCH, {}).get("device", {}).get("median")
    rows = []
    for name, taken in times.items():
        medians = {kind: values["median"] for kind, values in taken.items()}
        error = facts.get("error", {}).get(name)
        equal = facts.get("equal_replays", {}).get(name)
        rows.append((
            name, _us(medians["latency"]),
            f"{_us(taken['latency']['low'])} - {_us(taken['latency']['high'])}",
            _us(medians["device"]), _us(peer and medians["device"] / peer, 2),
            _us(medians["host"]), _error(error),
            "-" if equal is None else f"{equal} of 50",
        ))  # fmt: skip
    heads = ("latency", "quartiles", "device", f"over {_TORCH}", "host", "error", "equal replays")
    return _table(("runtime", *heads), rows)


def _traces(traces: Mapping[str, Any]) -> str:
    totals, slowest = [], []
    for name, trace in traces.items():
        kernels = trace["kernels"]
        total = sum(kernel["us"] * kernel["n"] for kernel in kernels)
        n_kernels = sum(kernel["n"] for kernel in kernels)
        totals.append((name, f"{n_kernels:g}", _us(total), _us(trace.get("span_us"))))
        by_name: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for kernel in kernels:
            by_name[kernel["name"]].append(kernel)
        groups = sorted(by_name.values(), key=lambda group: -max(each["us"] for each in group))
        slowest += [
            (name, f"`{group[0]['name'][:60]}`", _us(max(each["us"] for each in group)),
             f"{sum(each['n'] for each in group):g}",
             *(group[0][key] for key in ("grid", "block", "registers per thread")))
            for group in groups[:_N_SLOWEST]
        ]  # fmt: skip
    summary = _table(("runtime", "kernels", "sum", "first to last"), totals)
    heads = ("runtime", "slowest kernels", "us", "n", "grid", "block", "registers")
    return f"{summary}\n{_table(heads, slowest)}" if slowest else summary


def _failures(name: str, step: Mapping[str, Any]) -> str:
    failures = step.get("facts", {}).get("failures", {})
    lines = [
        f"- {name}, {part}: `{_cell(text.strip().splitlines()[-1])}`\n"
        for part, text in failures.items()
    ]
    if "facts" not in step and step.get("log"):
        lines += [f"- {name}: `{_cell(step['log'].strip().splitlines()[-1])}`\n"]
    return "".join(lines)


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(_cell(str(cell)) for cell in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _us(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
