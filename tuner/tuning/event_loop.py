"""The event loop of a coordinator, which an interrupt ends only where it waits."""

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

# Allocations before Python looks for cyclic garbage. The rounds in flight are many objects that
# live for seconds, and next to none is cyclic; with Python's threshold of 700 the search took a
# seventh of a busy coordinator's time, with 20,000 a tenth, and with 200,000 a fiftieth to a
# twenty-fifth, in pauses of up to 0.4 s.
_GC_THRESHOLD = 1_000_000

Result = TypeVar("Result")


class _InterruptibleSelector(selectors.DefaultSelector):
    """The system's selector, whose wait an interrupt may end; see :mod:`tuner.interrupts`."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        with interrupts.waiting():
            return super().select(timeout)


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop that an interrupt ends while it waits."""
    return asyncio.SelectorEventLoop(_InterruptibleSelector())


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in an event loop of its own; tasks that outlive it are cancelled.

    In a thread that runs a loop already, such as that of a notebook, the loop of the coroutine
    runs in another thread, for which this one waits.
    """
    if _is_inside_loop():
        return _run_in_other_thread(work)
    return _run(work)


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


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, *thresholds[1:])
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
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


def _run_in_other_thread(work: Coroutine[Any, Any, Result]) -> Result:
    """Run in another thread; an interrupt of this one cancels the work and waits for its end."""
    task_started: futures.Future[asyncio.Task[Result]] = futures.Future()

    async def cancellable() -> Result:
        task = asyncio.ensure_future(work)
        task_started.set_result(task)
        return await task

    with futures.ThreadPoolExecutor(1, thread_name_prefix="loop") as threads:
        wrapped = cancellable()
        ended = threads.submit(_run, wrapped)
        try:
            with interrupts.waiting():
                return ended.result()
        except BaseException:
            waited: list[futures.Future[Any]] = [task_started, ended]
            futures.wait(waited, return_when=futures.FIRST_COMPLETED)
            if task_started.done():
                task = task_started.result()
                with suppress(RuntimeError):  # its loop is closed: it has ended
                    task.get_loop().call_soon_threadsafe(task.cancel)
            else:
                wrapped.close()  # no loop could be opened
            raise
