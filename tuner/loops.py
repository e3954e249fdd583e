"""The event loop of a coordinator: Ctrl-C ends it where it waits, and nowhere else."""

import asyncio
import gc
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tuner import interrupts

# Rounds in flight are many objects that live for seconds. Looked through each time that 700 more
# were made, they and what was loaded before took a seventh of a busy coordinator's time.
_COLLECT_AFTER = 20_000

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
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, *thresholds[1:])
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(work)
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
