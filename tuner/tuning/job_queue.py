"""Takes jobs in while others run: a source is asked in a thread, as loading a model takes long."""

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from tuner.devices.cpu_gate import CpuGate
from tuner.tuning.context import TuningContext
from tuner.tuning.session import TuningSession

# Opens the session of a job that came in; None if there is nothing to measure after all.
SessionFactory = Callable[[TuningContext], TuningSession | None]
# Told which jobs are under way, brings others; asked again and again, in a thread of its own.
JobSource = Callable[[Collection[int]], Sequence[SessionFactory]]

# Whether somebody asked for something is looked up so often.
_POLL_SECS = 0.5


class JobPoller:
    """Asks a source for jobs, one question at a time.

    Args:
        source: Brings jobs; None: nobody does.
        quiet: Loading a model takes cores, so that no CPU is timed meanwhile.

    Attributes:
        is_due: Whether something happened since it was asked last.
    """

    def __init__(self, source: JobSource | None, quiet: CpuGate) -> None:
        self._source = source
        self._quiet = quiet
        self._question: asyncio.Task[Sequence[SessionFactory]] | None = None
        self._asked = 0.0
        self._found_none = source is None
        self.is_due = True

    @property
    def has_no_jobs(self) -> bool:
        """Whether the source, asked when no job was under way, brought none."""
        return self._found_none

    @property
    def tasks(self) -> list[asyncio.Task[Sequence[SessionFactory]]]:
        """What is under way."""
        return [] if self._question is None else [self._question]

    def poll(
        self, running: Collection[int], is_large: bool, ended: asyncio.Event
    ) -> Sequence[SessionFactory]:
        """Return what was brought, and ask for more if it is time to.

        Args:
            running: Jobs under way.
            is_large: Whether rounds end so often that it is not asked after each.
            ended: Set when there is an answer.
        """
        if self._source is None:
            return ()
        if self._question is not None:
            if not self._question.done():
                return ()
            brought, self._question = self._question.result(), None
            self._found_none = not (brought or running)
            if brought:
                # Asked now, before they are under way, the source would bring them again.
                self.is_due = True
                ended.set()
                return brought
        now = asyncio.get_running_loop().time()
        if (self.is_due and not is_large) or now - self._asked >= _POLL_SECS:
            self._ask(set(running), ended)
        return ()

    def _ask(self, running: set[int], ended: asyncio.Event) -> None:
        self.is_due = False
        self._asked = asyncio.get_running_loop().time()
        self._question = asyncio.ensure_future(self._answer(running))
        self._question.add_done_callback(lambda _: ended.set())

    async def _answer(self, running: set[int]) -> Sequence[SessionFactory]:
        source = self._source
        assert source is not None
        async with self._quiet.shared():
            return await _in_thread(lambda: source(running))


async def _in_thread(call: Callable[[], Sequence[SessionFactory]]) -> Sequence[SessionFactory]:
    """Call in a thread that nobody waits for when the process ends."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Sequence[SessionFactory]] = loop.create_future()

    def settle(result: Sequence[SessionFactory] | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result or ())

    def work() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # a loop that was closed has nobody who waits
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name="source", daemon=True).start()
    return await answer
