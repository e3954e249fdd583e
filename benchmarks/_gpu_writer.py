"""GPU report as JSON and as Markdown."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

# TVM's tutorial "Auto-scheduling a Neural Network for NVIDIA GPU" names no GPU.
TUTORIAL = {
    "source": 'TVM tutorial "Auto-scheduling a Neural Network for NVIDIA GPU" '
    "(https://tvm.apache.org/docs/how_to/tune_with_autoscheduler/tune_network_cuda.html)",
    "gpu": "not named there",
    "tasks": 24,
    "trials": 4992,
    "secs": 13296,
    "estimated_secs": 1.587e-3,
}


_NOTICE = (
    "A latency is the time of one run, from its call until the device is done, with the input "
    "already on the device."
)


def write(report: Mapping[str, Any], folder: Path) -> None:
    """Write ``report.json`` and ``report.md``; a kill leaves the earlier ones."""
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / "report.json", json.dumps(_plain(report), indent=1) + "\n")
    _replace(folder / "report.md", as_markdown(report))


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)


def _plain(value: Any) -> Any:
    """Replace numbers that JSON cannot hold by text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def as_markdown(report: Mapping[str, Any]) -> str:
    """Return the report as text; times without a unit are milliseconds."""
    parts = [
        f"# Report of {report['date']} on target `{report['target']}`\n",
        f"`{report['command']}`\n\n{report['minutes']:g} minutes, "
        f"{report['secs']:.0f} s of them spent. {_NOTICE}\n",
        f"\n**The GPU is lost:** {report['lost']}\n" if report["lost"] else "",
        _steps_table(report["steps"]),
        *(_section(step) for step in report["steps"] if step["state"] != "not reached"),
    ]
    return "\n".join(part for part in parts if part).rstrip() + "\n"


def _steps_table(steps: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (step["title"], step["state"], f"{step['secs']:.0f} of {step['allotted_secs']:.0f}",
         step["reason"])
        for step in steps
    ]  # fmt: skip
    return _table(("step", "state", "s", "why not"), rows)


def _section(step: Mapping[str, Any]) -> str:
    facts = step["facts"]
    parts = [f"## {step['title']}\n"]
    if "checks" in facts:
        parts += [_checks(facts)]
    for key, title in (("first_rounds", "Rounds of 64"), ("tuning", "Tuning")):
        if key in facts:
            parts += [f"**{title}**\n", _tuning(facts[key])]
    if "build" in facts:
        parts += [_build(facts["build"])]
    if "latency" in facts:
        parts += [_latencies(facts["latency"], {})]
    if "agreement" in facts:
        parts += [_agreement(facts["agreement"])]
    for key in ("untuned", "tuned"):
        if key in facts:
            parts += [f"**Against torch, {key}**\n", _race(facts[key])]
    if facts.get("not_reached"):
        parts += [f"Not reached: {facts['not_reached']}.\n"]
    left_out = facts.get("left_out", {})
    parts += [f"{name} is left out: {reason}.\n" for name, reason in left_out.items()]
    if step["title"].startswith("ResNet-18"):
        parts += [_tutorial()]
    parts += [_commands(step)]
    return "\n".join(part for part in parts if part)


def _checks(facts: Mapping[str, Any]) -> str:
    rows: list[Sequence[Any]] = [
        (check["name"], check["state"], check["found"]) for check in facts["checks"]
    ]
    named = [("device", facts.get("device", {})), ("torch", facts.get("torch", {}))]
    named += [("nvidia-smi", facts.get("gpu", {}))]
    rows += [(f"{name}: {key}", "", value) for name, group in named for key, value in group.items()]
    return _table(("what", "state", "found"), rows)


def _tuning(facts: Mapping[str, Any]) -> str:
    full = facts.get("full_round")
    busy = ", ".join(f"{name} {share:.0%}" for name, share in facts.get("busy", {}).items())
    errors = ", ".join(f"{kind} {n}" for kind, n in sorted(facts.get("errors", {}).items()))
    rows = [
        ("tasks", _shown(facts.get("n_tasks"))),
        ("trials in all", _shown(facts.get("trials"))),
        ("trials now", _shown(facts.get("trials_now"))),
        ("seconds from the first pick to the last record", _rounded(facts.get("measuring_secs"))),
        ("trials a second", _rounded(facts.get("trials_per_sec"), 2)),
        ("the same in the largest round", _round(full)),
        ("busy share of devices", busy or "unknown: the command was killed"),
        ("failed trials", errors or "none"),
        ("of them, with a broken context afterwards", _shown(facts.get("sticky"))),
        ("trials on a throttled device", _shown(facts.get("throttled"))),
        ("estimated latency, ms", _ms(facts.get("estimated_secs"))),
    ]
    texts = [f"- {kind}: `{_line(text)}`" for kind, text in facts.get("error_texts", {}).items()]
    return _table(("tuning", ""), rows) + "".join(f"{text}\n" for text in texts)


def _round(facts: Mapping[str, float] | None) -> str:
    if facts is None:
        return "-"
    return f"{facts['trials_per_sec']:.2f}: {facts['trials']} in {facts['secs']:.1f} s"


def _build(facts: Mapping[str, Any] | None) -> str:
    if facts is None:
        return "There is no library.\n"
    return (
        f"Library: {facts['tuned']} subgraphs tuned, {facts['fallbacks']} fallbacks, built in "
        f"{facts['secs']:.1f} s, estimated {_ms(facts['estimated_secs'])} ms.\n"
    )


def _race(facts: Mapping[str, Any]) -> str:
    left_out = facts["left_out"].items()
    return "\n".join(
        (
            _build(facts["build"]),
            _latencies(facts["latency"], facts["ratio"]),
            _agreement(facts["agreement"]),
            *(f"{name} is left out: {reason}.\n" for name, reason in left_out),
        )
    )


def _latencies(latency: Mapping[str, Mapping[str, float]], ratio: Mapping[str, float]) -> str:
    rows = [
        (name, _ms(times["median_secs"]), f"{_ms(times['low_secs'])} - {_ms(times['high_secs'])}",
         times["n"], _rounded(ratio.get(name), 3))
        for name, times in latency.items()
    ]  # fmt: skip
    return _table(("runtime", "median, ms", "quartiles, ms", "runs", "ours over it"), rows)


def _agreement(facts: Mapping[str, Any]) -> str:
    if "problem" in facts:
        return f"Outputs were not compared: {facts['problem']}.\n"
    verdict = "agrees" if facts["agrees"] else "**does not agree**"
    text = (
        f"Output {verdict}: largest error {facts['relative_error']:.1e} of the largest output, "
        f"tolerance {facts['tolerance']:.1e}."
    )
    if "torch_relative_error" in facts:
        text += f" Torch's own in this dtype: {facts['torch_relative_error']:.1e}."
    return f"{text}\n"


def _tutorial() -> str:
    return (
        f"For comparison, {TUTORIAL['source']}: {TUTORIAL['tasks']} tasks, {TUTORIAL['trials']:,} "
        f"trials in {TUTORIAL['secs']:,} s, estimated {_ms(TUTORIAL['estimated_secs'])} ms; GPU "
        f"{TUTORIAL['gpu']}.\n"
    )


def _commands(step: Mapping[str, Any]) -> str:
    lines = [f"$ {command}" for command in step["commands"]]
    gpu = [
        f"GPU {when}: " + ", ".join(f"{key} {value}" for key, value in step[f"gpu_{when}"].items())
        for when in ("before", "after")
        if step.get(f"gpu_{when}")
    ]
    return "\n".join(["```text", *lines, *gpu, "```", ""]) if lines or gpu else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(_line(str(cell)) for cell in line)} |\n" for line in lines)


def _line(text: str) -> str:
    """Escape text for a cell."""
    return " ".join(text.split()).replace("|", "\\|")


def _ms(secs: Any) -> str:
    return "-" if not isinstance(secs, (int, float)) else f"{secs * 1e3:.4g}"


def _rounded(value: Any, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _shown(value: Any) -> str:
    return "-" if value is None else f"{value:,}"
