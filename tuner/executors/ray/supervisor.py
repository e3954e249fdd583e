"""The supervisor of an agent: starts it, calls it, and replaces it when it is lost."""

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
from tuner.executors.ray.agent import START_TIMEOUT_SECS, Agent, Answer, release
from tuner.executors.ray.cluster import AgentSlot

_MIN_PAUSE_SECS = 1.0
_MAX_PAUSE_SECS = 60.0

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentTimeouts:
    """Intervals and time-outs of a fleet of agents, seconds.

    Attributes:
        poll_secs: Interval between look-ups of the nodes that are alive.
        start_secs: Wait for agents to start; a cluster may have no room for them.
        grace_secs: Time after the time-out of a call in which its agent counts as hung.
        fetch_secs: Wait for the files of another node before they count as lost; less than
            grace_secs.
        restart_secs: Wait for the agent of a device to be replaced before the device is lost.
    """

    poll_secs: float = 1.0
    start_secs: float = 120.0
    grace_secs: float = 30.0
    fetch_secs: float = 10.0
    restart_secs: float = 60.0


class UnfitNodeError(Exception):
    """A node cannot run an agent of this coordinator."""


class AgentSupervisor:
    """Keeps one agent running in its slot; used only in the event loop of its fleet.

    Args:
        slot: Node, device and CPUs of the agent.
        engine: Module with the worker functions.
        timeouts: Time-outs of its calls and its start.
        on_change: Called when the agent becomes ready, and when it is lost.

    Attributes:
        device: Name of the device on its node; empty before the first start.
        is_available: True if it can be called now, or as soon as the agent is replaced.
        is_unreachable: True if its node could not be reached, and has not been since.
        settled: Set once the agent was ready, or did not start.
        problem: Reason why it did not start; empty if it did.
    """

    def __init__(
        self,
        slot: AgentSlot,
        engine: str,
        timeouts: AgentTimeouts,
        on_change: Callable[["AgentSupervisor"], None],
    ) -> None:
        self.slot = slot
        self.device = ""
        self.is_available = False
        self.is_unreachable = False
        self.settled = asyncio.Event()
        self.problem = ""
        self._engine = engine
        self._timeouts = timeouts
        self._on_change = on_change
        self._agent: Any = None
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._keeper = asyncio.create_task(self._keep())

    @property
    def is_ready(self) -> bool:
        """True if the agent can be called at once."""
        return self._agent is not None

    async def call(self, method: str, *args: Any, timeout_secs: float) -> Any:
        """Call a method of the agent, after the calls before it, and return the value.

        Args:
            method: Method of :class:`tuner.executors.ray.agent.Agent`.
            *args: Arguments of the method.
            timeout_secs: Time-out after which the agent itself ends the call.

        Raises:
            AttachmentLost: If a file that accompanies the call cannot be fetched.
            TunerError, OSError: As :class:`tuner.workers.base.Call` says.
        """
        async with self._turn:
            agent = await self._ready_agent()
            answer = getattr(agent, method).remote(*args)
            return (await self._answer(agent, answer, timeout_secs)).unwrap()

    async def call_for_files(self, method: str, *args: Any, timeout_secs: float) -> tuple[Any, Any]:
        """Call a method that returns an answer and files; return the value and a Ray reference."""
        async with self._turn:
            agent = await self._ready_agent()
            answer, files = getattr(agent, method).options(num_returns=2).remote(*args)
            return (await self._answer(agent, answer, timeout_secs)).unwrap(), files

    def give_up(self) -> None:
        """Count the agent as lost with its node, and replace it."""
        self._drop_agent(unreachable=True)

    def close(self) -> None:
        """End the agent for good; its calls are lost."""
        self._keeper.cancel()
        self._drop_agent(unreachable=True)
        self.settled.set()

    async def _answer(self, agent: Any, ref: Any, timeout_secs: float) -> Answer:
        limit = timeout_secs + self._timeouts.grace_secs
        try:
            answer: Answer = await _get(ref, limit)
        except TimeoutError:
            self._replace(agent, unreachable=False)
            raise WorkerLost(
                f"the agent on {self.slot.node} gave no answer within {limit:g} s", crashed=False
            ) from None
        except exceptions.ActorUnavailableError as error:
            self._replace(agent, unreachable=True)
            raise self._lost("cannot be reached") from error
        except (exceptions.RayActorError, exceptions.OutOfMemoryError) as error:
            self._replace(agent, unreachable=False)
            raise self._lost("was killed") from error
        except exceptions.RayError as error:
            raise WorkError(f"the agent on {self.slot.node} failed: {_summary(error)}") from error
        return answer

    async def _ready_agent(self) -> Any:
        deadline = asyncio.get_running_loop().time() + self._timeouts.restart_secs
        while self._agent is None:
            left = deadline - asyncio.get_running_loop().time()
            if not self.is_available or left <= 0:
                self.is_available = False
                raise self._lost("is lost")
            # Not wait_for, which on Python 3.11 loses a request to cancel.
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()
        return self._agent

    async def _keep(self) -> None:
        """Start an agent, and another one whenever it is lost."""
        pause = _MIN_PAUSE_SECS
        while True:
            try:
                agent = await self._start()
                self._agent = agent
                self.is_available = True
                self.is_unreachable = False
                self.problem = ""
                self.settled.set()
                self._notify()
                self._on_change(self)
            except UnfitNodeError as error:
                self._set_problem(f"node {self.slot.node} is left out: {error}")
                return
            except Exception as error:  # whatever it is, the next attempt may succeed
                self._set_problem(f"no agent starts on node {self.slot.node}: {_summary(error)}")
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_SECS)
            else:
                pause = _MIN_PAUSE_SECS
                while self._agent is not None:
                    await self._changed.wait()

    async def _start(self) -> Any:
        slot = self.slot
        options: dict[str, Any] = {
            "num_cpus": slot.n_cpus,
            "max_restarts": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(slot.node_id, soft=False),
        }
        if slot.resource is not None:
            options["resources"] = {slot.resource: 1}
        agent = _actor_class().options(**options).remote(self._engine, slot.resource)
        try:
            installed = await _get(agent.release.remote())
            if installed != release():
                raise UnfitNodeError(f"it has {installed}; the coordinator has {release()}")
            answer: Answer = await _get(agent.start.remote(), START_TIMEOUT_SECS)
            self.device = answer.unwrap()
        except BaseException:
            _kill(agent)
            raise
        return agent

    def _set_problem(self, problem: str) -> None:
        if problem != self.problem:
            _LOG.warning("%s", problem)
        self.problem = problem
        self.settled.set()

    def _replace(self, agent: Any, *, unreachable: bool) -> None:
        if agent is self._agent:
            self._drop_agent(unreachable=unreachable)
            self._on_change(self)

    def _drop_agent(self, *, unreachable: bool) -> None:
        if self._agent is not None:
            _kill(self._agent)
        self._agent = None
        self.is_unreachable = unreachable
        self.is_available = self.is_available and not unreachable
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _lost(self, event: str) -> WorkerLost:
        """Return the loss of the agent, or of its device if the agent is not being replaced."""
        if self.slot.resource is None or self.is_available:
            return WorkerLost(f"the agent on {self.slot.node} {event}", crashed=False)
        return DeviceLost(f"device {self.slot.node}/{self.device} {event}")


@lru_cache
def _actor_class() -> Any:
    return ray.remote(Agent)


async def _get(ref: Any, limit: float | None = None) -> Any:
    """Wait for the object of a Ray reference; one that arrives after the limit is dropped.

    Raises:
        TimeoutError: After the limit, seconds.
    """
    future = asyncio.wrap_future(ref.future())
    done, _ = await asyncio.wait({future}, timeout=limit)
    if not done:
        future.add_done_callback(lambda late: late.cancelled() or late.exception())
        raise TimeoutError
    return future.result()


def _kill(agent: Any) -> None:
    with suppress(exceptions.RayError):  # it has ended already
        ray.kill(agent, no_restart=True)


def _summary(error: Exception) -> str:
    # Ray puts tracebacks before the text of an error.
    return summary(error, last=isinstance(error, exceptions.RayError))
