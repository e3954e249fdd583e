"""The timing of a library, and its comparison with a peer, as lines and as JSON."""

from typing import Any

from tuner.cli.console import stdout_console
from tuner.compile.benchmark import Comparison
from tuner.formatting import milliseconds

_DERIVED = ("mean_secs", "stdev_secs", "ratio", "agrees")


def comparison_as_json(comparison: Comparison) -> dict[str, Any]:
    """Return what ``--json`` prints of a comparison."""
    return {**vars(comparison), **{name: getattr(comparison, name) for name in _DERIVED}}


def show_comparison(comparison: Comparison) -> None:
    """Print a line for each result."""
    console = stdout_console()
    for label, text in _lines(comparison):
        console.print(f"{label:<12} {text}", highlight=False)
    if comparison.degenerate:
        console.print(
            "note: the output is constant, so its agreement proves little; "
            "tune, build and bench with --random-weights 0",
            style="yellow",
            highlight=False,
        )


def _lines(comparison: Comparison) -> list[tuple[str, str]]:
    library_secs = comparison.library_secs
    mean, stdev = milliseconds(comparison.mean_secs), milliseconds(comparison.stdev_secs)
    n_samples = len(comparison.library_samples)
    lines = [
        ("library", f"{milliseconds(library_secs)} ms median, {comparison.n_threads} threads"),
        ("", f"{mean} ms mean, {stdev} ms standard deviation, {n_samples} samples"),
    ]
    if comparison.estimated_secs:
        error = comparison.estimated_secs / library_secs - 1
        estimate = milliseconds(comparison.estimated_secs)
        lines.append(("estimate", f"{estimate} ms by the records ({error:+.1%})"))
    if comparison.peer_secs is not None and comparison.ratio is not None:
        lines += _peer_lines(comparison, comparison.peer_secs, comparison.ratio)
    return lines


def _peer_lines(comparison: Comparison, peer_secs: float, ratio: float) -> list[tuple[str, str]]:
    speed = f"{1 / ratio - 1:.0%} faster" if ratio < 1 else f"{ratio - 1:.0%} slower"
    outputs = "outputs agree" if comparison.agrees else "[red]outputs differ[/red]"
    errors = (
        f"max absolute error {comparison.absolute_error:.3g}, "
        f"relative {comparison.relative_error:.3g}"
    )
    return [
        (str(comparison.peer), f"{milliseconds(peer_secs)} ms median, same threads, in turns"),
        ("ratio", f"{ratio:.3f} ({speed})"),
        ("outputs", f"{outputs}: {errors}"),
    ]
