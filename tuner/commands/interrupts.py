"""Ctrl-C and SIGTERM as an exception, so that whatever runs can put itself away."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """The user or the system asked the process to stop; ``exit_code`` is the shell's for it."""

    def __init__(self, signal_number: int) -> None:
        name = "Ctrl-C" if signal_number == signal.SIGINT else signal.Signals(signal_number).name
        super().__init__(
            f"stopped by {name}; every finished trial is kept, run the same command to go on"
        )
        self.exit_code = 128 + signal_number


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise :class:`Interrupted` on SIGINT and SIGTERM; a second one changes nothing."""
    before = {number: signal.signal(number, _raise) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(number: int, _frame: FrameType | None) -> None:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(number)
