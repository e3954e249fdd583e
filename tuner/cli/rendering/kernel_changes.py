"""The changes of kernels between two profiles as a table with notes."""

from rich.text import Text

from tuner.cli.console import print_line, print_note, stdout_console
from tuner.cli.rendering.grid import Column, Grid
from tuner.formatting import DASH, milliseconds, short_name, told_apart
from tuner.profiling.kernel_changes import Changes, KernelChange

_STYLES = {"slower": "red", "faster": "green"}
_RUN = {"passed": "not slower", "failed": "slower", "undecided": "too noisy to tell"}


def show_changes(changes: Changes, a: str, b: str) -> None:
    """Print a row for each subgraph, the largest cost first, the run, and what differs."""
    table = Grid(
        Column("Workload", rank=3),
        Column("Name", "name"),
        Column("Calls", "number", 4),
        Column("A (ms)", "number"),
        Column("B (ms)", "number"),
        Column("B costs\n(ms)", "number", 1),
        Column("Change", "number"),
        Column("95% interval", "number", 2),
        Column("Result"),
        Column("Code"),
        title=f"A: {a}, {changes.a.model_name}. B: {b}, {changes.b.model_name}.",
    )
    kernels = changes.kernels
    names = told_apart([each.name for each in kernels], [each.workload for each in kernels])
    for change, name in zip(kernels, names, strict=True):
        outcome = Text(change.outcome, _STYLES.get(change.outcome, ""))
        table.add(*_cells(change, name), outcome, change.code or DASH)
    stdout_console().print(table)
    run = changes.run
    low, high = run.interval or (run.value, run.value)
    print_line(
        f"run: {milliseconds(changes.a.plain_secs)} ms in A, {milliseconds(changes.b.plain_secs)} "
        f"ms in B, {run.value:+.1%} ({low:+.1%} to {high:+.1%}): {_RUN[run.outcome]}"
    )
    for name, (then, now) in changes.differs.items():
        print_line(f"{name}: {then} in A, {now} in B")
    if any(each.outcome == "unclear" for each in kernels):
        print_note(
            "unclear: the interval contains the limit; repeat on a quiet machine, or with more "
            "--runs"
        )


def _cells(change: KernelChange, name: str) -> tuple[str, ...]:
    calls = sorted({str(n) for n in change.n_calls if n})
    interval = change.interval and " to ".join(f"{end:+.1%}" for end in change.interval)
    return (
        short_name(change.workload) or DASH,
        name,
        "/".join(calls),
        milliseconds(change.a_secs),
        milliseconds(change.b_secs),
        milliseconds(change.cost_secs),
        DASH if change.change is None else f"{change.change:+.1%}",
        interval or DASH,
    )
