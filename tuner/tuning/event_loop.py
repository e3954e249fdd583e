"""The event loop of a coordinator: Ctrl-C ends it where it waits, and nowhere else."""

import asyncio
import contextvars
import gc
import selectors
import threading
from collections.abc import Callable, Coroutine
from concurrent import futures
from contextlib import suppress
from typing import Any, TypeVar

from tuner import interrupts

# Rounds in flight are many objects that live for seconds. Looked through each time that 700 more
# were made, they and what was loaded before took a seventh of a busy coordinator's time, and a
# tenth each time that 20,000 were.
_COLLECT_AFTER = 200_000

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
    """Run a coroutine to its end in a loop of its own; what it left running is cancelled.

    A thread that is inside a loop, as that of a notebook is, waits for another thread's.
    """
    if _is_inside_loop():
        return _run_beside(work, loop_factory)
    return _run(work, loop_factory)


async def run_in_thread(work: Callable[[], Result], name: str) -> Result:
    """Run blocking work in a thread of its own and return its result.

    The thread has the context variables of the caller. It is a daemon: neither a caller that is
    cancelled nor the end of the process waits for it.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Result] = loop.create_future()

    def settle(outcome: futures.Future[Result]) -> None:
        if answer.done():
            return
        if (error := outcome.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(outcome.result())

    def run_work() -> None:
        outcome: futures.Future[Result] = futures.Future()
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)
        with suppress(RuntimeError):  # the loop was closed, and the result is of no use
            loop.call_soon_threadsafe(settle, outcome)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run_work,), name=name, daemon=True).start()
    return await answer


def _run(work: Coroutine[Any, Any, Result], loop_factory: LoopFactory) -> Result:
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, *thresholds[1:])
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(work)
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _is_inside_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_beside(work: Coroutine[Any, Any, Result], loop_factory: LoopFactory) -> Result:
    """Run in another thread; what interrupts this one cancels the work and waits for its end."""
    begun: futures.Future[asyncio.Task[Result]] = futures.Future()

    async def cancellable() -> Result:
        task = asyncio.ensure_future(work)
        begun.set_result(task)
        return await task

    with futures.ThreadPoolExecutor(1, thread_name_prefix="loop") as threads:
        beginning = cancellable()
        ended = threads.submit(_run, beginning, loop_factory)
        try:
            with interrupts.waiting():
                return ended.result()
        except BaseException:
            waited: list[futures.Future[Any]] = [begun, ended]
            futures.wait(waited, return_when=futures.FIRST_COMPLETED)
            if begun.done():
                task = begun.result()
                with suppress(RuntimeError):  # its loop is closed: it has ended
                    task.get_loop().call_soon_threadsafe(task.cancel)
            else:
                beginning.close()  # no loop could be opened
            raise
