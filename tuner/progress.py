"""Show a tuning session as it runs: a live table in a terminal, plain lines elsewhere."""

import math
import sys
import time
from collections.abc import Sequence
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scheduler import estimate
from scheduler.outlook import Outlook
from tuner.overview import Overview, TaskRow
from tuner.tune_options import Status

_LINE_EVERY_SECS = 5.0
# Lines a terminal needs beside the rows of the table.
_FRAME_LINES = 9


class Progress(Protocol):
    """Watches a session; used as a context."""

    def __call__(self, status: Status) -> None:
        """Show a status; may be called many times a second."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


def make_progress(console: Console) -> Progress:
    """Choose the live table for a terminal, plain lines for anything else."""
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)


class LiveProgress:
    """A table that redraws in place.

    It redraws only when told, never by a clock of its own: while a candidate is timed
    nobody tells, so drawing takes no core from it.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def __call__(self, status: Status) -> None:
        """Redraw the table."""
        n_rows = max(self._console.size.height - _FRAME_LINES, 5)
        table = task_table(status.overview, n_rows=n_rows, current=status.current)
        self._live.update(Group(table, Text(summary(status)), Text(status.phase, "dim")))
        self._live.refresh()

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.__exit__(None, None, None)


class PlainProgress:
    """One line every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0

    def __call__(self, status: Status) -> None:
        """Print a line, unless the last one is only seconds old."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_EVERY_SECS
            self._console.print(
                f"{summary(status)}  {status.phase}", highlight=False, soft_wrap=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


def stderr_console() -> Console:
    """A console for people: stdout is kept for results."""
    return Console(file=sys.stderr)


def stdout_console() -> Console:
    """A console for results; wide enough for a table where nobody reads along."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def task_table(
    overview: Overview, *, n_rows: int | None = None, current: int | None = None
) -> Table:
    """Render the task scheduler table; rows that do not fit are summed up in one."""
    table = Table(title="Task scheduler", title_justify="left")
    for name in ("ID", "Task", "Weight", "Latency (ms)", "GFLOPS", "Trials", "Failed", "Share"):
        table.add_column(name, justify="left" if name == "Task" else "right", no_wrap=True)
    shown, hidden = _fit(overview.rows, n_rows)
    for index, row in shown:
        style = "bold cyan" if row.task_id == current else ""
        table.add_row(*_cells(index, row), style=style)
    if hidden:
        share = sum(row.share for _, row in hidden)
        trials = sum(row.n_trials for _, row in hidden)
        table.add_row("", f"{len(hidden)} more tasks", "", "", "", str(trials), "", f"{share:.1%}")
    return table


def summary(status: Status) -> str:
    """Say where a session stands, in one line."""
    budget = status.budget
    trials = f"{status.spent_trials}" + (f"/{budget.trials}" if budget.trials else "")
    eta = estimate.eta_secs(budget, spent_trials=status.spent_trials, spent_secs=status.spent_secs)
    if status.trials_to_stop is not None and status.spent_trials:
        pace = status.spent_secs / status.spent_trials
        eta = min(eta, status.trials_to_stop * pace)
    parts = [
        f"Total latency {milliseconds(status.overview.total_secs)} ms",
        f"trials {trials}",
        f"elapsed {clock(status.spent_secs)}",
        f"ETA {clock(eta)}",
    ]
    if status.outlook is not None:
        parts.append(f"next minute saves {saving(status.outlook)}")
    index = _index_of(status.overview.rows, status.current)
    if index is not None:
        parts.append(f"now task {index}")
    return "  ".join(parts)


def milliseconds(secs: float) -> str:
    """Format a latency; a dash for one not known yet."""
    return f"{secs * 1e3:.4f}" if math.isfinite(secs) else "-"


def saving(outlook: Outlook) -> str:
    """Format what trials are forecast to save, with its standard deviation."""
    return f"{outlook.saving * 1e3:.2g} ± {outlook.spread * 1e3:.1g} ms"


def clock(secs: float) -> str:
    """Format a duration as h:mm:ss; a dash for one not known yet."""
    if not math.isfinite(secs):
        return "-"
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def _cells(index: int, row: TaskRow) -> tuple[str, ...]:
    return (
        str(index),
        row.name,
        str(row.weight),
        milliseconds(row.latency),
        f"{row.gflops:.1f}" if math.isfinite(row.latency) else "-",
        f"{row.n_trials}{' (all)' if row.exhausted else ''}",
        str(row.n_failed) if row.n_failed else "",
        f"{row.share:.1%}" if row.share else "-",
    )


_Numbered = tuple[int, TaskRow]


def _fit(rows: Sequence[TaskRow], n_rows: int | None) -> tuple[list[_Numbered], list[_Numbered]]:
    numbered = list(enumerate(rows))
    if n_rows is None or len(rows) <= n_rows:
        return numbered, []
    heaviest = sorted(numbered, key=lambda pair: (-pair[1].share, pair[0]))
    shown = {index for index, _ in heaviest[: n_rows - 1]}
    return (
        [pair for pair in numbered if pair[0] in shown],
        [pair for pair in numbered if pair[0] not in shown],
    )


def _index_of(rows: Sequence[TaskRow], task_id: int | None) -> int | None:
    return next((i for i, row in enumerate(rows) if row.task_id == task_id), None)
