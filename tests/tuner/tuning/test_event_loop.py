"""A coordinator's event loop, in a thread that has one and in one that has none."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable

import pytest

from tuner import interrupts
from tuner.tuning import event_loop


async def name_of_thread() -> str:
    """Return who runs this."""
    return threading.current_thread().name


async def fail() -> None:
    """Fail."""
    raise ValueError("nothing there")


def in_loop(function: Callable[[], object]) -> object:
    """Call a function as a cell of a notebook does: inside a running loop."""

    async def cell() -> object:
        return function()

    return asyncio.run(cell())


def test_work_runs_in_the_thread_that_asks() -> None:
    """Where signals arrive."""
    assert event_loop.run(name_of_thread()) == threading.current_thread().name


def test_a_thread_inside_a_loop_waits_for_another() -> None:
    """Which a notebook's cell is."""
    assert str(in_loop(lambda: event_loop.run(name_of_thread()))).startswith("loop")


def test_what_fails_beside_a_loop_fails_where_it_was_called() -> None:
    """With its own error."""
    with pytest.raises(ValueError, match="nothing there"):
        in_loop(lambda: event_loop.run(fail()))


def test_a_loop_that_cannot_be_opened_beside_a_loop_is_an_error() -> None:
    """The work never begins, and is not waited for."""

    def no_loop() -> asyncio.AbstractEventLoop:
        raise OSError("too many open files")

    work = name_of_thread()
    with pytest.raises(OSError, match="too many open files"):
        in_loop(lambda: event_loop.run(work, no_loop))
    work.close()


def test_an_interrupt_beside_a_loop_ends_the_work_first() -> None:
    """What it has open is put away before the interrupt goes on."""
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
