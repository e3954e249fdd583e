"""Show a tuning job as it runs: a live table in a terminal, plain lines elsewhere."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from scheduler import estimate
from scheduler.budget import Budget
from tuner.cli.rendering.json_output import task_views
from tuner.cli.rendering.tables import clock, milliseconds, saving, task_table
from tuner.schemas import JobView, OutlookView, TaskView
from tuner.tuning.status import TuningCallbacks, TuningStatus

_LINE_EVERY_SECS = 5.0
# Lines a terminal needs beside the rows of the table.
_FRAME_LINES = 9


@dataclass(frozen=True)
class ProgressSnapshot:
    """What there is to see of a job at one moment, wherever it runs.

    Attributes:
        phase: What goes on.
        tasks: The table.
        total_secs: Latency of the network; None while it is unknown.
        spent_trials: That count against the budget.
        budget_trials: Limit.
        spent_secs: The job has spent.
        eta_secs: Until it stops; inf where nobody can say.
        outlook: What the next minute is forecast to save.
    """

    phase: str
    tasks: Sequence[TaskView]
    total_secs: float | None
    spent_trials: int
    budget_trials: int | None
    spent_secs: float
    eta_secs: float
    outlook: OutlookView | None


class Progress(Protocol):
    """Watches a job; used as a context."""

    def __call__(self, status: TuningStatus) -> None:
        """Show the status of a session here; may be called many times a second."""

    def show(self, glimpse: ProgressSnapshot) -> None:
        """Show a job, wherever it runs; may be called many times a second."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


def make_progress(console: Console) -> Progress:
    """Choose the live table for a terminal, plain lines for anything else."""
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)


@contextmanager
def console_callbacks(console: Console) -> Iterator[TuningCallbacks]:
    """Render a local tuning run on a console."""

    def print_dim(line: str) -> None:
        console.print(line, style="dim", highlight=False)

    def print_busy(shares: Mapping[str, float]) -> None:
        print_dim("busy: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items()))

    with make_progress(console) as progress:
        yield TuningCallbacks(progress, lambda note: print_dim(f"note: {note}"), print_busy)


class LiveProgress:
    """A table that redraws in place.

    It redraws only when told, never by a clock of its own: while a candidate is timed
    nobody tells, so drawing takes no core from it.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def __call__(self, status: TuningStatus) -> None:
        """Redraw the table."""
        self.show(glimpse_of_status(status))

    def show(self, glimpse: ProgressSnapshot) -> None:
        """Redraw the table."""
        n_rows = max(self._console.size.height - _FRAME_LINES, 5)
        table = task_table(glimpse.tasks, n_rows=n_rows)
        self._live.update(Group(table, Text(summary(glimpse)), Text(glimpse.phase, "dim")))
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

    def __call__(self, status: TuningStatus) -> None:
        """Print a line, unless the last one is only seconds old."""
        if time.monotonic() >= self._next:
            self.show(glimpse_of_status(status))

    def show(self, glimpse: ProgressSnapshot) -> None:
        """Print a line, unless the last one is only seconds old."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_EVERY_SECS
            self._console.print(
                f"{summary(glimpse)}  {glimpse.phase}", highlight=False, soft_wrap=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


def glimpse_of_status(status: TuningStatus) -> ProgressSnapshot:
    """Return what there is to see of a session here."""
    budget, outlook = status.budget, status.outlook
    total = status.snapshot.total_secs
    eta = estimate.eta_secs(budget, spent_trials=status.spent_trials, spent_secs=status.spent_secs)
    if status.trials_to_stop is not None and status.spent_trials:
        pace = status.spent_secs / status.spent_trials
        eta = min(eta, status.trials_to_stop * pace)
    return ProgressSnapshot(
        phase=status.phase,
        tasks=task_views(status.snapshot, status.current),
        total_secs=total if math.isfinite(total) else None,
        spent_trials=status.spent_trials,
        budget_trials=budget.trials,
        spent_secs=status.spent_secs,
        eta_secs=eta,
        outlook=None if outlook is None else OutlookView(**asdict(outlook)),
    )


def snapshot_of_job(view: JobView) -> ProgressSnapshot:
    """Return what there is to see of a job of a service."""
    job = view.job
    eta = math.inf
    if job.budget_trials or job.budget_secs:
        budget = Budget(job.budget_trials or None, job.budget_secs)
        eta = estimate.eta_secs(budget, spent_trials=job.spent_trials, spent_secs=job.spent_secs)
    return ProgressSnapshot(
        phase=f"job {job.id} {job.state}" + (f": {job.phase}" if job.phase else ""),
        tasks=view.tasks,
        total_secs=job.total_latency_secs,
        spent_trials=job.spent_trials,
        budget_trials=job.budget_trials,
        spent_secs=job.spent_secs,
        eta_secs=eta,
        outlook=view.outlook,
    )


def summary(glimpse: ProgressSnapshot) -> str:
    """Say where a job stands, in one line."""
    limit = f"/{glimpse.budget_trials}" if glimpse.budget_trials else ""
    parts = [
        f"Total latency {milliseconds(glimpse.total_secs)} ms",
        f"trials {glimpse.spent_trials}{limit}",
        f"elapsed {clock(glimpse.spent_secs)}",
        f"ETA {clock(glimpse.eta_secs)}",
    ]
    if glimpse.outlook is not None:
        parts.append(f"next minute saves {saving(glimpse.outlook)}")
    running = [task.id for task in glimpse.tasks if task.running]
    if running:
        parts.append(f"now task {running[0]}")
    return "  ".join(parts)
