"""Event loops of a coordinator, in threads with and without a running loop."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable

import pytest

from tuner import interrupts
from tuner.tuning import event_loop


async def name_of_thread() -> str:
    """Return the name of the thread that runs this."""
    return threading.current_thread().name


async def fail() -> None:
    """Raise an error."""
    raise ValueError("nothing there")


def in_loop(function: Callable[[], object]) -> object:
    """Call a function as a cell of a notebook does: inside a running loop."""

    async def cell() -> object:
        return function()

    return asyncio.run(cell())


def test_work_runs_in_the_thread_of_the_caller() -> None:
    """The main thread runs its work itself, because signals arrive there."""
    assert event_loop.run(name_of_thread()) == threading.current_thread().name


def test_inside_a_loop_work_runs_in_another_thread() -> None:
    """The cell of a notebook, which runs inside a loop, waits for the work."""
    assert str(in_loop(lambda: event_loop.run(name_of_thread()))).startswith("loop")


def test_errors_of_another_thread_are_raised_in_the_caller() -> None:
    """The caller gets the error itself."""
    with pytest.raises(ValueError, match="nothing there"):
        in_loop(lambda: event_loop.run(fail()))


def test_a_loop_that_cannot_be_opened_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work never starts, and the caller does not wait for it."""

    def no_loop() -> asyncio.AbstractEventLoop:
        raise OSError("too many open files")

    work = name_of_thread()
    monkeypatch.setattr(event_loop, "new_loop", no_loop)
    with pytest.raises(OSError, match="too many open files"):
        in_loop(lambda: event_loop.run(work))
    work.close()


def test_an_interrupt_ends_the_work_before_it_is_raised() -> None:
    """Work in another thread is cancelled, and cleans up, before the caller is interrupted."""
    ended = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60.0)
        finally:
            ended.append("work")

    with pytest.raises(interrupts.Interrupted), interrupts.interruptible(only_waiting=True):
        in_loop(lambda: event_loop.run(work()))

    assert ended == ["work"]
