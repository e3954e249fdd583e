"""One agent and its successors: started, asked, given up and replaced."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tuner.errors import DeviceLost, WorkerLost, WorkError, summary
from tuner.executors.ray.agent import BEGIN_SECS, Agent, Answer, release
from tuner.executors.ray.cluster import AgentSlot

_FIRST_PAUSE_SECS = 1.0
_LONGEST_PAUSE_SECS = 60.0

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class SlotTimeouts:
    """How long to wait for what may never come, seconds.

    Attributes:
        poll_secs: Between two looks at which nodes are alive.
        start_secs: Until agents are ready that a cluster has no room for now, say.
        grace_secs: After a call's own time-out, until its agent is taken for hung.
        fetch_secs: Until what a node built is taken for lost with it; less than grace_secs.
        restart_secs: Until a device whose agent is being replaced is taken for lost.
    """

    poll_secs: float = 1.0
    start_secs: float = 120.0
    grace_secs: float = 30.0
    fetch_secs: float = 10.0
    restart_secs: float = 60.0


class Unfit(Exception):  # noqa: N818  the name says what is wrong
    """A node on which an agent is no use."""


class Slot:
    """Keeps an agent at its place; used in the loop of its fleet alone.

    Args:
        place: Where.
        engine: Module with the worker functions.
        patience: With it.
        on_change: Told when an agent can be asked, and when its node cannot be reached.

    Attributes:
        device: Name of the device on its node; empty until it is known.
        is_there: Whether it can be asked, now or as soon as its agent is replaced.
        is_away: Whether its node could not be reached, and has not been since.
        settled: Set once it was ready, or did not start.
        problem: Why it did not start; empty if it did.
    """

    def __init__(
        self,
        place: AgentSlot,
        engine: str,
        patience: SlotTimeouts,
        on_change: Callable[["Slot"], None],
    ) -> None:
        self.place = place
        self.device = ""
        self.is_there = False
        self.is_away = False
        self.settled = asyncio.Event()
        self.problem = ""
        self._engine = engine
        self._patience = patience
        self._on_change = on_change
        self._agent: Any = None
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._keeper = asyncio.create_task(self._keep())

    @property
    def is_ready(self) -> bool:
        """Whether it can be asked at once."""
        return self._agent is not None

    async def ask(self, method: str, *args: Any, timeout_secs: float) -> Any:
        """Have the agent do something, one thing at a time, and return what it answers.

        Args:
            method: Of :class:`tuner.executors.ray.agent.Agent`.
            *args: Of the method.
            timeout_secs: After which the agent itself ends the call.

        Raises:
            PartsLost: If something that comes along cannot be had.
            TunerError, OSError: See :class:`tuner.workers.base.Call`.
        """
        async with self._turn:
            agent = await self._ready_agent()
            answer = getattr(agent, method).remote(*args)
            return (await self._answer(agent, answer, timeout_secs)).unwrap()

    async def ask_for_part(self, method: str, *args: Any, timeout_secs: float) -> tuple[Any, Any]:
        """Ask for what comes in two parts; of the second only a reference is returned."""
        async with self._turn:
            agent = await self._ready_agent()
            answer, part = getattr(agent, method).options(num_returns=2).remote(*args)
            return (await self._answer(agent, answer, timeout_secs)).unwrap(), part

    def shun(self) -> None:
        """Take the agent for lost, because another one on its node was."""
        self._give_up(away=True)

    def close(self) -> None:
        """Give the place up: calls end as lost."""
        self._keeper.cancel()
        self._give_up(away=True)
        self.settled.set()

    async def _answer(self, agent: Any, part: Any, timeout_secs: float) -> Answer:
        limit = timeout_secs + self._patience.grace_secs
        try:
            answer: Answer = await _within(part, limit)
        except TimeoutError:
            self._replace(agent, away=False)
            raise WorkerLost(
                f"the agent on {self.place.node} gave no answer within {limit:g} s", crashed=False
            ) from None
        except exceptions.ActorUnavailableError as error:
            self._replace(agent, away=True)
            raise self._lost("cannot be reached") from error
        except (exceptions.RayActorError, exceptions.OutOfMemoryError) as error:
            self._replace(agent, away=False)
            raise self._lost("was killed") from error
        except exceptions.RayError as error:
            raise WorkError(f"the agent on {self.place.node} failed: {_summary(error)}") from error
        return answer

    async def _ready_agent(self) -> Any:
        deadline = asyncio.get_running_loop().time() + self._patience.restart_secs
        while self._agent is None:
            left = deadline - asyncio.get_running_loop().time()
            if not self.is_there or left <= 0:
                self.is_there = False
                raise self._lost("is gone")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        return self._agent

    async def _keep(self) -> None:
        """Start an agent, and another one whenever it is lost."""
        pause = _FIRST_PAUSE_SECS
        while True:
            try:
                self._set(await self._start())
            except Unfit as error:
                self._note(f"node {self.place.node} is left out: {error}")
                return
            except Exception as error:  # whatever it is, the next attempt may do better
                self._note(f"no agent starts on node {self.place.node}: {_summary(error)}")
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECS)
            else:
                pause = _FIRST_PAUSE_SECS
                while self._agent is not None:
                    await self._changed.wait()

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            _LOG.warning("%s", problem)
        self.problem = problem
        self.settled.set()

    async def _start(self) -> Any:
        agent = self._launch()
        try:
            theirs = await _within(agent.release.remote())
            if theirs != release():
                raise Unfit(f"it has {theirs}; here is {release()}")
            answer: Answer = await _within(agent.begin.remote(), BEGIN_SECS)
            self.device = answer.unwrap()
        except BaseException:
            _kill(agent)
            raise
        return agent

    def _launch(self) -> Any:
        place = self.place
        options: dict[str, Any] = {
            "num_cpus": place.n_cpus,
            "max_restarts": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(place.node_id, soft=False),
        }
        if place.resource is not None:
            options["resources"] = {place.resource: 1}
        return _actor_class().options(**options).remote(self._engine, place.resource)

    def _set(self, agent: Any) -> None:
        self._agent = agent
        self.is_there = True
        self.is_away = False
        self.problem = ""
        self.settled.set()
        self._tell()
        self._on_change(self)

    def _replace(self, agent: Any, *, away: bool) -> None:
        if agent is self._agent:
            self._give_up(away=away)
            self._on_change(self)

    def _give_up(self, *, away: bool) -> None:
        if self._agent is not None:
            _kill(self._agent)
        self._agent = None
        self.is_away = away
        self.is_there = self.is_there and not away
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _lost(self, what: str) -> WorkerLost:
        """Say that the agent is lost; and its device with it, if that is more than a moment."""
        if self.place.resource is None or self.is_there:
            return WorkerLost(f"the agent on {self.place.node} {what}", crashed=False)
        return DeviceLost(f"device {self.place.node}/{self.device} {what}")


@lru_cache
def _actor_class() -> Any:
    return ray.remote(Agent)


async def _within(part: Any, limit: float | None = None) -> Any:
    """Wait for an object; an answer that comes after the limit is dropped.

    Raises:
        TimeoutError: After the limit, seconds.
    """
    waited = asyncio.wrap_future(part.future())
    done, _ = await asyncio.wait({waited}, timeout=limit)
    if not done:
        waited.add_done_callback(lambda future: future.cancelled() or future.exception())
        raise TimeoutError
    return waited.result()


def _kill(agent: Any) -> None:
    with suppress(exceptions.RayError):  # it is gone
        ray.kill(agent, no_restart=True)


def _summary(error: Exception) -> str:
    # Ray puts tracebacks before the text of an error.
    return summary(error, last=isinstance(error, exceptions.RayError))
