"""The timing of a library, and its comparison with peers, as a table with notes."""

from collections.abc import Iterator

from rich.text import Text

from tuner.cli.console import stdout_console
from tuner.cli.rendering.grid import Column, Grid
from tuner.compile.bench.agreement import OutputCheck
from tuner.compile.bench.comparison import Comparison, PeerResult
from tuner.formatting import counted, milliseconds

_DEVICES = {"cpu": "CPU", "cuda": "GPU"}
_MAX_INPUTS = 8


def show_comparison(comparison: Comparison) -> None:
    """Print a row for each runtime, then facts, differences and warnings."""
    console = stdout_console()
    console.print(_table(comparison))
    for label, text in _facts(comparison):
        console.print(f"{label:<9} {text}", highlight=False, markup=False, soft_wrap=True)
    for text in _differences(comparison):
        console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)
    for text in _warnings(comparison):
        console.print(
            f"note: {text}", style="yellow", highlight=False, markup=False, soft_wrap=True
        )


def _table(comparison: Comparison) -> Grid:
    table = Grid(
        Column("Runtime", "name"),
        Column("Device"),
        Column("Median (ms)", "number"),
        Column("Mean (ms)", "number", 2),
        Column("Stdev (ms)", "number", 1),
        Column("Ratio", "number"),
        Column("Outputs", "prose"),
    )
    times = (comparison.library_secs, comparison.mean_secs, comparison.stdev_secs)
    table.add("library", _DEVICES[comparison.device], *map(milliseconds, times), "", "")
    for peer in comparison.peers:
        times = (peer.median_secs, peer.mean_secs, peer.stdev_secs)
        table.add(
            f"{peer.name} {peer.version}",
            _DEVICES[peer.device],
            *map(milliseconds, times),
            f"{peer.ratio:.3f}",
            _agreement(peer),
        )
    return table


def _agreement(peer: PeerResult) -> str | Text:
    if not peer.agrees:
        return Text("differ", "red")
    return f"agree, worst error {peer.worst:.2g} of the tolerance"


def _facts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    if comparison.estimated_secs:
        yield "estimate", _estimate(comparison, comparison.estimated_secs)
    yield "threads", f"{comparison.n_threads} for each runtime, in turns"
    if comparison.model:
        yield "model", comparison.model
    if comparison.launch:
        yield "launch", comparison.launch
    if comparison.tail:
        yield "tail", f"{comparison.tail}; the library is timed with them"
    names = list(comparison.inputs)
    for name in names[:_MAX_INPUTS]:
        given = comparison.inputs[name]
        shape = "x".join(map(str, given.shape)) or "scalar"
        yield "input", f"{name} {given.dtype} {shape}: {given.values}"
    if len(names) > _MAX_INPUTS:
        yield "input", f"and {len(names) - _MAX_INPUTS} more"
    for peer in comparison.peers:
        if peer.n_near_ties:
            elements = counted(peer.n_near_ties, "element")
            yield "float64", f"{elements} unlike {peer.name}, and right"
    for skipped in comparison.skipped:
        yield "skipped", f"{skipped.name}: {skipped.reason}{skipped.fix and ': ' + skipped.fix}"


def _estimate(comparison: Comparison, estimated_secs: float) -> str:
    if comparison.clock is None:
        reason = "not compared, as other work kept the clock from being read"
        return f"{milliseconds(estimated_secs)} ms by the records ({reason})"
    estimate = milliseconds(estimated_secs / comparison.clock)
    at = "" if comparison.clock == 1.0 else f", at {comparison.clock:.0%} of their clock"
    return f"{estimate} ms by the records{at} ({comparison.estimate_error:+.1%})"


def _differences(comparison: Comparison) -> Iterator[str]:
    for peer in comparison.peers:
        for output in peer.outputs:
            if not output.agrees:
                yield f"output {output.name!r} differs from {peer.name}: {_difference(output)}"


def _difference(output: OutputCheck) -> str:
    if output.problem:
        return output.problem
    text = f"{output.n_differing:,} of {output.n_elements:,} elements"
    if output.n_not_finite:
        text += f", {output.n_not_finite:,} of them NaN or infinite on one side"
    text += f"; largest absolute error {output.absolute_error:.3g}"
    if output.worst < float("inf"):
        text += f", {output.worst:.3g} times the tolerance"
    return text


def _warnings(comparison: Comparison) -> Iterator[str]:
    for peer in comparison.peers:
        if peer.device != comparison.device:
            yield (
                f"the library runs on the {_DEVICES[comparison.device]}, {peer.name} on the "
                f"{_DEVICES[peer.device]}: the ratio compares two devices"
            )
        if peer.note:
            yield f"{peer.name}: {peer.note}"
    if comparison.is_disturbed:
        yield (
            "the samples of a runtime spread by more than a quarter: other processes use this "
            "machine, and the ratios are not reliable"
        )
    if comparison.degenerate:
        yield (
            "every output is constant or not finite, so agreement proves little; if the weights "
            "are placeholders, tune, build and bench with --random-weights 0"
        )
