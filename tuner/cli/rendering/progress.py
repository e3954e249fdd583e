"""Progress of a tuning job: a live table in a terminal, a line every few seconds elsewhere."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tuner.cli.console import detail
from tuner.cli.rendering.tables import task_table
from tuner.queries.progress import JobProgress, progress_of_status, summary
from tuner.tuning.status import TuningCallbacks, TuningStatus

_LINE_INTERVAL_SECS = 5.0
# Interval of lines with the same trials and phase.
_REPEAT_INTERVAL_SECS = 60.0
# Lines of a terminal that the rows of the table do not take.
_FRAME_LINES = 9


class Progress(Protocol):
    """Context manager that shows a job; a status callback, too."""

    def __call__(self, status: TuningStatus) -> None:
        """Show a job of this process; may be called many times a second."""

    def show(self, progress: JobProgress) -> None:
        """Show a job; may be called many times a second."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


def make_progress(console: Console) -> Progress:
    """Return a live table for a terminal, plain lines for anything else."""
    # Logs would tear lines that are redrawn apart.
    is_live = console.is_terminal and not console.is_dumb_terminal and detail() == "normal"
    return LiveProgress(console) if is_live else PlainProgress(console)


@contextmanager
def console_callbacks(console: Console) -> Iterator[TuningCallbacks]:
    """Render a local tuning run on a console."""

    def print_dim(line: str) -> None:
        console.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)

    def print_busy(shares: Mapping[str, float]) -> None:
        busy = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        print_dim(f"searching, building or measuring: {busy} of the time")

    with make_progress(console) as progress:
        yield TuningCallbacks(progress, lambda note: print_dim(f"note: {note}"), print_busy)


class LiveProgress:
    """Table that is redrawn in place.

    It is redrawn by its callers alone, not by a timer: no status arrives while a candidate is
    timed, so drawing takes no core from it.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def __call__(self, status: TuningStatus) -> None:
        """Redraw the table."""
        self.show(progress_of_status(status))

    def show(self, progress: JobProgress) -> None:
        """Redraw the table."""
        n_rows = max(self._console.size.height - _FRAME_LINES, 5)
        table = task_table(progress.tasks, n_rows=n_rows)
        # Started by the first table: a request that is rejected leaves no empty frame.
        self._live.start()
        self._live.update(Group(table, Text(summary(progress)), Text(progress.phase, "dim")))
        self._live.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        # The report of a job that is done begins with the table.
        self._live.transient = exc[0] is None
        self._live.stop()


class PlainProgress:
    """One line every few seconds, or every minute while trials and phase stay the same."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0
        self._shown: tuple[int, str] | None = None
        self._repeat = 0.0

    def __call__(self, status: TuningStatus) -> None:
        """Print a line unless the last one is too new."""
        if time.monotonic() >= self._next:
            self.show(progress_of_status(status))

    def show(self, progress: JobProgress) -> None:
        """Print a line unless the last one is too new."""
        now, state = time.monotonic(), (progress.spent_trials, progress.phase)
        if now < self._next:
            return
        self._next = now + _LINE_INTERVAL_SECS
        if state != self._shown or now >= self._repeat:
            self._shown, self._repeat = state, now + _REPEAT_INTERVAL_SECS
            line = f"{summary(progress)}  {progress.phase}"
            self._console.print(line, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None
