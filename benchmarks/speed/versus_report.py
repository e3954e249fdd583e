"""The lines of ``benchmarks.speed.versus`` as a summary and as a table."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

Line = Mapping[str, Any]
#: Goals of the ratio to the faster peer: geometric mean, and worst network.
GOAL_MEAN, GOAL_WORST = 0.8, 1.0


def read(file: Path) -> dict[str, dict[str, Any]]:
    """Return the last line of each network, by name; a line that was cut off is left out."""
    lines = {}
    for text in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        lines[line["network"]] = line
    return lines


def summarise(lines: Sequence[Line]) -> dict[str, Any]:
    """Return the geometric means of the ratios to the faster peer, and the worst network."""
    timed = [line for line in lines if "error" not in line]
    worst = max(timed, key=lambda line: line["ratio"], default=None)
    mean = _mean(timed)
    return {
        "benchmark": "versus",
        "networks": len(lines),
        "failed": [line["network"] for line in lines if "error" in line],
        "disagree": [line["network"] for line in timed if not line["agrees"]],
        "mean_ratio": mean,
        "mean_ratio_of_new": _mean([line for line in timed if line["new"]]),
        "faster": sum(line["ratio"] <= 1.0 for line in timed),
        "worst_ratio": worst and worst["ratio"],
        "worst_network": worst and worst["network"],
        "reached": bool(
            worst
            and mean
            and len(timed) == len(lines)
            and mean <= GOAL_MEAN
            and worst["ratio"] <= GOAL_WORST
        ),
    }


def table(lines: Sequence[Line]) -> str:
    """Return a table in Markdown, a row for each network, and the losses below."""
    rows = [
        "| network | new | trials | library (ms) | ONNX Runtime (ms) | OpenVINO (ms) "
        "| to the faster |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_row(line) for line in lines),
    ]
    summary = summarise(lines)
    if summary["mean_ratio"] is not None:
        rows += ["", _closing(summary)]
    losses = [text for line in lines for text in _losses(line)]
    return "\n".join([*rows, *(["", *losses] if losses else [])])


def _row(line: Line) -> str:
    new = "new" if line["new"] else ""
    if "error" in line:
        return f"| {line['network']} | {new} | {line['error'].replace('|', '/')} | | | | |"
    ratio = f"{'~' if line['disturbed'] else ''}{line['ratio']:.2f}"
    times = (line.get(f"{name}_ms") for name in ("library", "onnxruntime", "openvino"))
    shown = " | ".join("" if ms is None else f"{ms:.4g}" for ms in times)
    return f"| {line['network']} | {new} | {line['n_trials']} | {shown} | {ratio} |"


def _closing(summary: Line) -> str:
    new = summary["mean_ratio_of_new"]
    of_new = "" if new is None else f", {new:.2f} of the new ones"
    return (
        f"Geometric mean against the faster peer {summary['mean_ratio']:.2f}{of_new}; worst "
        f"{summary['worst_ratio']:.2f} ({summary['worst_network']})."
    )


def _losses(line: Line) -> list[str]:
    return [
        f"- {line['network']}: {', '.join(loss['kernels'])} takes {loss['library_ms']:.4g} ms, "
        f"{line['fastest_peer']} {loss['peer_ms']:.4g} ms"
        for loss in line.get("losses", ())
    ]


def _mean(lines: Sequence[Line]) -> float | None:
    return round(geometric_mean(line["ratio"] for line in lines), 3) if lines else None
