"""The executor of a Ray cluster: builders on its CPUs, and a runner for each device."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Self

from tuner.devices.runners.base import Runner
from tuner.engines.base import BuildRequest
from tuner.errors import RequestError, WorkerLost
from tuner.executors.ray import cluster
from tuner.settings import Settings
from tuner.workers.base import FutureCall
from tuner.workers.utilisation import UtilisationMeter

if TYPE_CHECKING:
    from tuner.executors.ray.fleet import AgentFleet
    from tuner.executors.ray.supervisor import AgentSupervisor, AgentTimeouts

_TRAINING_MODULE = "tuner.cost_models.training"
_DESCRIBE_TIMEOUT_SECS = 300.0


class BackgroundLoop:
    """An event loop in a daemon thread, which starts with this object."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tuner-fleet", daemon=True
        )
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, Any]) -> FutureCall:
        """Run a coroutine; a call whose loop is closed before it ends raises WorkerLost."""
        return FutureCall(asyncio.run_coroutine_threadsafe(_lost_if_cancelled(work), self._loop))

    def run(self, work: Callable[[], None]) -> None:
        """Call a function in the loop, and return at once."""
        self._loop.call_soon_threadsafe(work)

    def close(self) -> None:
        """Cancel all tasks, and end the thread."""
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _lost_if_cancelled(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await work
    except asyncio.CancelledError:
        raise WorkerLost("its executor was closed", crashed=False) from None


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class RayRunner:
    """A :class:`tuner.devices.runners.base.Runner` of one device of the cluster."""

    shares_cores = False  # no builder runs on a node whose CPU is a device
    n_ahead = 1

    def __init__(self, executor: "RayExecutor", agent: "AgentSupervisor", name: str) -> None:
        self.name = name
        self.meter = UtilisationMeter()
        self.agent = agent
        self._executor = executor

    def describe(self, spec: str) -> FutureCall:
        """Describe a target as the device sees it."""
        return self._executor.measure(
            self.agent, "describe_target", spec, timeout_secs=_DESCRIBE_TIMEOUT_SECS
        )

    def measure(self, function: str, *args: Any, timeout_secs: float) -> FutureCall:
        """Call a function of the engine on the device."""
        call = self._executor.measure(self.agent, function, *args, timeout_secs=timeout_secs)
        return self.meter.watch(call)

    def close(self) -> None:
        """Do nothing: the executor ends the agents of all devices."""


class RayExecutor:
    """An :class:`tuner.executors.base.Executor` with the builders and devices of a Ray cluster.

    Agents start in the background, come with the nodes that join and go with those that leave.
    This process must run on a node of the cluster.

    Args:
        settings: Cluster, engine, and the largest number of builders.
        meter: Meter of the builders' work.
        timeouts: Time-outs of agents; the defaults suit a network of machines.

    Raises:
        RequestError: If the cluster does not answer, or it has no device or no CPU to build on.
    """

    def __init__(
        self,
        settings: Settings,
        meter: UtilisationMeter | None = None,
        timeouts: "AgentTimeouts | None" = None,
    ) -> None:
        if settings.ray_address is None:
            raise RequestError("no Ray cluster is named: set ray_address")
        cluster.connect(settings.ray_address)
        self._settings = settings
        self._runners: dict[AgentSupervisor, RayRunner] = {}
        self._loop = BackgroundLoop()
        self._fleet = _open_fleet(settings, timeouts, meter or UtilisationMeter())
        try:
            self._loop.start(self._fleet.open()).result()
        except BaseException:
            self.close()
            raise

    @property
    def n_builders(self) -> int:
        """Number of ready builders; 1 while none is ready."""
        agents = self._fleet.agents.values()
        return max(1, sum(agent.slot.resource is None and agent.is_ready for agent in agents))

    @property
    def runners(self) -> Sequence[Runner]:
        """Runners of the devices that can measure now."""
        devices = [
            agent
            for agent in self._fleet.agents.values()
            if agent.slot.resource is not None and agent.is_available
        ]
        self._runners = {
            agent: self._runners.get(agent) or self._runner(agent) for agent in devices
        }
        return list(self._runners.values())

    def warm_up(self) -> list[FutureCall]:
        """Return a call that ends when every agent is ready or has failed to start."""
        return [self._loop.start(self._fleet.settle())]

    def submit(self, function: str, *args: Any, timeout_secs: float) -> FutureCall:
        """Call a function of the engine in a builder."""
        return self._loop.start(
            self._fleet.call(self._settings.engine, function, args, timeout_secs)
        )

    def train(self, *args: Any, timeout_secs: float) -> FutureCall:
        """Train a cost model in a builder."""
        return self._loop.start(self._fleet.call(_TRAINING_MODULE, "train", args, timeout_secs))

    def build(self, request: BuildRequest, *, timeout_secs: float) -> FutureCall:
        """Build a candidate in a builder; the artifact stays on its node."""
        return self._loop.start(self._fleet.build(request, timeout_secs))

    def measure(
        self, agent: "AgentSupervisor", function: str, *args: Any, timeout_secs: float
    ) -> FutureCall:
        """Call a function of the engine on the device of an agent."""
        return self._loop.start(self._fleet.measure(agent, function, args, timeout_secs))

    def discard(self, artifact: str) -> None:
        """Forget an artifact; the cluster removes its files."""
        self._loop.run(lambda: self._fleet.discard(artifact))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the agents, and leave the cluster."""
        self._loop.run(self._fleet.close)
        self._loop.close()
        cluster.disconnect()

    def _runner(self, agent: "AgentSupervisor") -> RayRunner:
        """Name a device by its node; a second one of that name also by Ray's id of the node."""
        name = f"{agent.slot.node}/{agent.device}"
        if any(runner.name == name for runner in self._runners.values()):
            name = f"{name}@{agent.slot.node_id[:8]}"
        return RayRunner(self, agent, name)


def _open_fleet(
    settings: Settings, timeouts: "AgentTimeouts | None", meter: UtilisationMeter
) -> "AgentFleet":
    """Make a fleet; Ray is imported here, once a cluster has answered."""
    from tuner.executors.ray.fleet import AgentFleet
    from tuner.executors.ray.supervisor import AgentTimeouts

    return AgentFleet(settings, timeouts or AgentTimeouts(), meter)
