"""Ctrl-C and SIGTERM as an exception, so that whatever runs can put itself away.

An exception out of nowhere can hit a pool while it starts a process, or a library
between taking a lock and giving it back. What works with workers therefore stops
only where it waits for one, see :func:`waiting`; nothing else takes long.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


class Interrupted(BaseException):
    """The user or the system asked the process to stop; ``exit_code`` is the shell's for it."""

    def __init__(self, signal_number: int) -> None:
        name = "Ctrl-C" if signal_number == signal.SIGINT else signal.Signals(signal_number).name
        super().__init__(
            f"stopped by {name}; nothing that was finished is lost, run the same command to go on"
        )
        self.exit_code = 128 + signal_number


@dataclass
class _State:
    """Of the main thread, where signals arrive."""

    only_waiting: bool = False
    is_waiting: bool = False
    pending: Interrupted | None = None
    asked: Interrupted | None = None


_state = _State()


@contextmanager
def interruptible(*, only_waiting: bool = False) -> Iterator[None]:
    """Raise :class:`Interrupted` on SIGINT and SIGTERM; a second one changes nothing.

    With ``only_waiting`` it is raised inside :func:`waiting` alone; one that arrives
    elsewhere is raised at the next wait, or never if the work ends before. In any thread but the
    main one nothing is raised: signals do not arrive there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _handle) for number in (signal.SIGINT, signal.SIGTERM)}
    _state.only_waiting, _state.pending, _state.asked = only_waiting, None, None
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _state.only_waiting, _state.pending, _state.asked = False, None, None


@contextmanager
def waiting() -> Iterator[None]:
    """Mark a wait that an interrupt may end, raising one that arrived before it.

    In any thread but the main one it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _state.is_waiting = True
    try:
        if _state.pending is not None:
            stop, _state.pending = _state.pending, None
            raise stop
        yield
    finally:
        _state.is_waiting = False


def raise_if_asked() -> None:
    """Raise the interrupt that arrived, if one did: another error may have taken its place.

    Raises:
        Interrupted: If so.
    """
    if _state.asked is not None:
        raise _state.asked


def _handle(number: int, _frame: FrameType | None) -> None:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    stop = _state.asked = Interrupted(number)
    if _state.only_waiting and not _state.is_waiting:
        _state.pending = stop
        return
    raise stop
