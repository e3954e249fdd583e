"""Progress of a tuning job as one line that is rewritten, on a terminal or in a notebook."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tuner.queries.progress import progress_of_status, summary
from tuner.tuning.status import StatusCallback, TuningCallbacks, TuningStatus

_INTERVAL_SECS = 0.5


@contextmanager
def progress_callbacks(
    on_status: StatusCallback | None = None, *, show: bool = True
) -> Iterator[TuningCallbacks]:
    """Show a job on stderr if that is a terminal, or below the cell of a notebook.

    Args:
        on_status: Callback that receives the status instead.
        show: False to show nothing.
    """
    if on_status is not None:
        yield TuningCallbacks(on_status)
        return
    write = _writer() if show else None
    if write is None:
        yield TuningCallbacks()
        return
    line = _Line(write)
    try:
        yield TuningCallbacks(line, _write_note)
    finally:
        if write is _write_on_terminal:
            write("")
        else:
            line.end()


class _Line:
    """Status callback that rewrites a line, but not while a candidate is timed."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._next = 0.0
        self._last: TuningStatus | None = None

    def __call__(self, status: TuningStatus) -> None:
        """Show a status, unless the line is fresh or shall not take a core."""
        self._last = status
        if status.is_measuring_cpu or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _INTERVAL_SECS
        self._write(f"{summary(progress_of_status(status))}  {status.phase}")

    def end(self) -> None:
        """Leave the last status."""
        if self._last is not None:
            self._write(summary(progress_of_status(self._last)))


def _writer() -> Callable[[str], None] | None:
    """Return the function that replaces the line; None in pipes and files."""
    if (in_notebook := _notebook_writer()) is not None:
        return in_notebook
    return _write_on_terminal if sys.stderr is not None and sys.stderr.isatty() else None


def _write_on_terminal(line: str) -> None:
    width = shutil.get_terminal_size().columns - 1
    sys.stderr.write(f"\r\x1b[K{line[:width]}")
    sys.stderr.flush()


def _write_note(note: str) -> None:
    sys.stderr.write(f"note: {note}\n")


def _notebook_writer() -> Callable[[str], None] | None:
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython
    from IPython.display import display

    # The shell of a terminal has no kernel.
    if not hasattr(get_ipython(), "kernel"):
        return None
    handle = display({"text/plain": ""}, raw=True, display_id=True)

    def write(line: str) -> None:
        handle.update({"text/plain": line}, raw=True)

    return write
