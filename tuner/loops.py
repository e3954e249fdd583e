"""The event loop of a coordinator: Ctrl-C ends it where it waits, and nowhere else."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tuner import interrupts

Result = TypeVar("Result")
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class _WaitingSelector(selectors.DefaultSelector):
    """Waits as the system does; an interrupt may end that, see :mod:`tuner.interrupts`."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        with interrupts.waiting():
            return super().select(timeout)


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop that an interrupt ends while it waits."""
    return asyncio.SelectorEventLoop(_WaitingSelector())


def run(work: Coroutine[Any, Any, Result], loop_factory: LoopFactory = new_loop) -> Result:
    """Run a coroutine to its end in a loop of its own; what it left running is cancelled."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(work)
