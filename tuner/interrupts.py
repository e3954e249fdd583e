"""SIGINT and SIGTERM as an exception, so that running work can clean up.

An exception at an arbitrary instruction can hit a pool while it starts a process, or a library
between acquiring a lock and releasing it. Code that works with worker processes is therefore
interrupted only where it waits for one, see :func:`waiting`; everything else is short.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """The user or the system stopped the process; ``exit_code`` is the shell's code for it."""

    def __init__(self, signal_number: int) -> None:
        name = "Ctrl-C" if signal_number == signal.SIGINT else signal.Signals(signal_number).name
        super().__init__(
            f"stopped by {name}; finished work is kept, run the same command to resume"
        )
        self.exit_code = 128 + signal_number


@dataclass
class _State:
    """State of the main thread, which receives all signals.

    Attributes:
        only_waiting: True to raise inside :func:`waiting` alone.
        is_waiting: True while the thread is inside :func:`waiting`.
        pending: Interrupt that arrived outside a wait and was not raised yet.
        received: Interrupt that arrived, raised or not.
    """

    only_waiting: bool = False
    is_waiting: bool = False
    pending: Interrupted | None = None
    received: Interrupted | None = None


_state = _State()


@contextmanager
def interruptible(*, only_waiting: bool = False) -> Iterator[None]:
    """Raise :class:`Interrupted` on SIGINT and SIGTERM; a second signal is ignored.

    With ``only_waiting`` it is raised inside :func:`waiting` alone: a signal that arrives
    elsewhere is raised at the next wait, or never if the work ends before. Outside the main
    thread, which receives the signals, nothing is raised.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.signal(number, _handle) for number in _SIGNALS}
    _state.only_waiting, _state.pending, _state.received = only_waiting, None, None
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _state.only_waiting, _state.pending, _state.received = False, None, None


@contextmanager
def waiting() -> Iterator[None]:
    """Mark a wait that an interrupt may end; raise an interrupt that arrived before it.

    Outside the main thread it has no effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _state.is_waiting = True
    try:
        if _state.pending is not None:
            interrupt, _state.pending = _state.pending, None
            raise interrupt
        yield
    finally:
        _state.is_waiting = False


def raise_if_interrupted() -> None:
    """Raise the interrupt that arrived, if any, because another error may have replaced it.

    Raises:
        Interrupted: If a signal arrived.
    """
    if _state.received is not None:
        raise _state.received


def _handle(number: int, _frame: FrameType | None) -> None:
    for number_to_ignore in _SIGNALS:
        signal.signal(number_to_ignore, signal.SIG_IGN)
    interrupt = _state.received = Interrupted(number)
    if _state.only_waiting and not _state.is_waiting:
        _state.pending = interrupt
        return
    raise interrupt
