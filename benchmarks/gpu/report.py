"""Page of the results of a flight."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

_TORCH = "torch graph"
_N_SLOWEST = 5


def write(results: Path, into: Path) -> Path:
    """Write ``report.md`` and ``report.json`` into a folder named by device and date.

    Args:
        results: File of the results of a run.
        into: Folder of that folder.

    Returns:
        The page.
    """
    flown = json.loads(results.read_text())
    name = re.sub(r"[^a-z0-9]+", "-", _device(flown).lower()).strip("-")
    folder = into / f"{name}-{flown['date'][:10]}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(_without_logs(flown), indent=1) + "\n")
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
        "".join(_failures(name, step) for name, step in steps.items()),
    ]
    return "\n".join(part for part in parts if part)


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
    measured, compiled = (_facts(results, f"{step}-{name}") for step in ("measure", "compile"))
    kernels = _facts(results, f"profile-{name}").get("kernels", {})
    parts = [f"## {name}\n", _times(measured)]
    if "times_us" in compiled:
        parts += [f"In turns with `torch.compile`, after {compiled['compile_secs']:.0f} s:\n"]
        parts += [_times(compiled)]
    parts += [_traces(kernels)] if kernels else []
    return "\n".join(parts)


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
            _us(medians["host"]), "-" if error is None else f"{error:.1e}",
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
        slowest += [
            (name, f"`{kernel['name'][:60]}`", _us(kernel["us"]), f"{kernel['n']:g}",
             kernel["grid"], kernel["block"], kernel["registers per thread"])
            for kernel in sorted(kernels, key=lambda kernel: -kernel["us"])[:_N_SLOWEST]
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


def _without_logs(results: Mapping[str, Any]) -> dict[str, Any]:
    steps = {
        name: {key: value for key, value in step.items() if key != "log"}
        for name, step in results["steps"].items()
    }
    return {**results, "steps": steps}


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(_cell(str(cell)) for cell in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _us(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
