"""The workers of a Ray cluster: builders on its CPUs, and a runner for each device of its nodes."""

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Self

from tuner.devices.runners.base import Runner
from tuner.engines.base import BuildRequest
from tuner.errors import RequestError
from tuner.executors.ray import cluster
from tuner.executors.ray.event_loop import BackgroundLoop
from tuner.settings import Settings
from tuner.workers.future_call import FutureCall
from tuner.workers.utilisation import UtilisationMeter

if TYPE_CHECKING:
    from tuner.executors.ray.fleet import Fleet
    from tuner.executors.ray.slots import Slot, SlotTimeouts

_TRAINING_MODULE = "tuner.cost_models.training"
_DESCRIBE_TIMEOUT_SECS = 300.0


class RayRunner:
    """Times on one device of the cluster; see :class:`tuner.devices.runners.base.Runner`."""

    shares_cores = False  # nobody builds on a node whose CPU is a device

    def __init__(self, executor: "RayExecutor", slot: "Slot", name: str) -> None:
        self.name = name
        self.meter = UtilisationMeter()
        self.slot = slot
        self._executor = executor

    def describe(self, spec: str) -> FutureCall:
        """See :class:`tuner.devices.runners.base.Runner`."""
        return self._executor.measure(
            self.slot, "describe_target", spec, timeout_secs=_DESCRIBE_TIMEOUT_SECS
        )

    def measure(self, function: str, *args: Any, timeout_secs: float) -> FutureCall:
        """See :class:`tuner.devices.runners.base.Runner`."""
        call = self._executor.measure(self.slot, function, *args, timeout_secs=timeout_secs)
        return self.meter.watch(call)

    def close(self) -> None:
        """Leave the device to its executor, which lets go of all."""


class RayExecutor:
    """Builders and runners of a Ray cluster, as :class:`tuner.executors.base.Executor`.

    Agents start in the background, come with the nodes that join and go with those that leave.
    This process has to run on a node of the cluster.

    Args:
        settings: Name the cluster and the engine, and bound the builders.
        meter: Told how long the builders work.
        patience: With agents; by default what suits a network of machines.

    Raises:
        RequestError: If there is no such cluster, or it has no device or no CPU to build on.
    """

    def __init__(
        self,
        settings: Settings,
        meter: UtilisationMeter | None = None,
        patience: "SlotTimeouts | None" = None,
    ) -> None:
        if settings.ray_address is None:
            raise RequestError("no Ray cluster is named: set ray_address")
        cluster.connect(settings.ray_address)
        self._settings = settings
        self._runners: dict[Slot, RayRunner] = {}
        self._loop = BackgroundLoop()
        self._fleet = _fleet(settings, patience, meter or UtilisationMeter())
        try:
            self._start(self._fleet.open()).result()
        except BaseException:
            self.close()
            raise

    @property
    def n_builders(self) -> int:
        """Calls that builders make side by side, now; 1 while none is ready."""
        slots = self._fleet.slots
        return max(1, sum(place.resource is None and slots[place].is_ready for place in slots))

    @property
    def runners(self) -> Sequence[Runner]:
        """The devices that can measure now."""
        slots = self._fleet.slots.values()
        there = [slot for slot in slots if slot.place.resource is not None and slot.is_there]
        self._runners = {slot: self._runners.get(slot) or self._runner(slot) for slot in there}
        return list(self._runners.values())

    def warm_up(self) -> list[FutureCall]:
        """Return a call that ends when every agent is ready or known not to start."""
        return [self._start(self._fleet.settle())]

    def submit(self, function: str, *args: Any, timeout_secs: float) -> FutureCall:
        """See :class:`tuner.executors.base.Executor`."""
        return self._start(self._fleet.call(self._settings.engine, function, args, timeout_secs))

    def train(self, *args: Any, timeout_secs: float) -> FutureCall:
        """See :class:`tuner.executors.base.Executor`."""
        return self._start(self._fleet.call(_TRAINING_MODULE, "train", args, timeout_secs))

    def build(self, request: BuildRequest, *, timeout_secs: float) -> FutureCall:
        """See :class:`tuner.executors.base.Executor`; the artifact stays where it was built."""
        return self._start(self._fleet.build(request, timeout_secs))

    def measure(self, slot: "Slot", function: str, *args: Any, timeout_secs: float) -> FutureCall:
        """Call a function of the engine on the device of an agent."""
        return self._start(self._fleet.measure(slot, function, args, timeout_secs))

    def discard(self, artifact: str) -> None:
        """Forget an artifact; the cluster removes its files."""
        self._loop.run(lambda: self._fleet.discard(artifact))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the agents up and leave the cluster."""
        self._loop.run(self._fleet.close)
        self._loop.close()
        cluster.disconnect()

    def _start(self, work: Coroutine[Any, Any, Any]) -> FutureCall:
        return self._loop.start(work)

    def _runner(self, slot: "Slot") -> RayRunner:
        """Name a device by its node; a second one of that name by what Ray calls the node, too."""
        name = f"{slot.place.node}/{slot.device}"
        if any(runner.name == name for runner in self._runners.values()):
            name = f"{name}@{slot.place.node_id[:8]}"
        return RayRunner(self, slot, name)


def _fleet(settings: Settings, patience: "SlotTimeouts | None", meter: UtilisationMeter) -> "Fleet":
    """Make a fleet; only here, with a cluster at hand, Ray is imported."""
    from tuner.executors.ray.fleet import Fleet
    from tuner.executors.ray.slots import SlotTimeouts

    return Fleet(settings, patience or SlotTimeouts(), meter)
