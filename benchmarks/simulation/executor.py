"""Simulated fleet: builders, and devices that come and go."""

import heapq
import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from benchmarks.simulation import kernels
from benchmarks.simulation.calls import SimulatedCall, World, fate
from benchmarks.simulation.runner import SimulatedRunner
from tuner.cost_models import blobs
from tuner.engines.base import BuildRequest, BuildResult, SearchRequest
from tuner.workers.base import Call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.devices.runners.base import Runner

_HOUR = 3600.0
# Training time of XGBoost on two cores: 0.96 s for 5,000 records and 2.14 s for 20,000; model size.
_TRAIN_SECS = 0.57
_TRAIN_SECS_PER_RECORD = 7.9e-5
_MODEL_BYTES = 214_000


class SimulatedExecutor:
    """Simulated builders and devices; see :class:`tuner.executors.base.Executor`.

    Args:
        world: Shared simulation state.

    Attributes:
        scenario: Parameters of the simulation.
        devices: All devices, including lost ones.
        outcomes: Reported builds that ended a trial, by error kind.
    """

    def __init__(self, world: World) -> None:
        self.scenario = scenario = world.scenario
        self.n_builders = scenario.n_builders
        self.devices = [_device(world, number) for number in range(scenario.n_devices)]
        self.runners: Sequence[Runner] = list(self.devices)
        self.outcomes: Counter[str] = Counter()
        self._world = world
        self._free_at = [0.0] * self.n_builders
        for device in self.devices:
            self._plan_loss(device)

    def warm_up(self) -> list[Call]:
        """Return no calls, because nothing has to be started."""
        return []

    def submit(self, function: str, *args: Any, timeout_secs: float) -> SimulatedCall:
        """Simulate a search, a reference or the fetch of the calibration kernel."""
        if function == "calibration_kernel":
            with self._world.handing_over():
                kernel = b"the kernel that devices are compared by"
                return self._call(0.0, kernel, timeout_secs)
        if function == "reference":
            with self._world.handing_over():
                return self._call(self.scenario.costs.run_secs, b"reference", timeout_secs)
        if function != "propose":
            raise ValueError(f"simulated builders cannot run {function}")
        with self._world.handing_over():
            request: SearchRequest = args[0]
            secs = self._world.scenario.costs.search_secs * request.n_candidates
            propose = partial(kernels.propose, request, self._world.scenario.trials_per_round)
            return self._call(secs, propose, timeout_secs)

    def train(self, *args: Any, timeout_secs: float) -> SimulatedCall:
        """Simulate the training of a cost model."""
        with self._world.handing_over():
            kind, _seed, examples = args
            secs = _TRAIN_SECS + _TRAIN_SECS_PER_RECORD * len(examples)
            return self._call(secs, blobs.seal(kind, bytes(_MODEL_BYTES)), timeout_secs)

    def build(self, request: BuildRequest, *, timeout_secs: float) -> SimulatedCall:
        """Simulate a build."""
        with self._world.handing_over():
            scenario = self._world.scenario
            result = BuildResult(kernels.artifact_of(request.trace))
            if request.trace and self._world.happens(scenario.faults.build_errors):
                result = BuildResult("", "simulated failure")
            return self._call(scenario.costs.build_secs, result, timeout_secs)

    def discard(self, artifact: str) -> None:
        """Do nothing, because nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing, because nothing is held."""

    def _call(self, secs: float, outcome: Any, timeout_secs: float) -> SimulatedCall:
        """Do work in the builder that is free next."""
        world = self._world
        call = SimulatedCall(world.loop.create_future())
        secs, outcome = fate(world, secs, outcome, timeout_secs)
        at = max(world.clock.now(), self._free_at[0]) + secs
        heapq.heapreplace(self._free_at, at)
        world.plan(at, lambda: self._end(call, outcome))
        return call

    def _end(self, call: SimulatedCall, outcome: Any) -> None:
        if call.end(outcome) and isinstance(outcome, BuildResult) and outcome.error_text:
            self.outcomes["build_error"] += 1

    def _plan_loss(self, device: SimulatedRunner) -> None:
        faults, now = self._world.scenario.faults, self._world.clock.now()
        at = now + self._world.wait_for(faults.device_losses / _HOUR)
        self._world.plan(at, lambda: self.lose(device))

    def lose(self, device: SimulatedRunner) -> None:
        """Lose a device for a while."""
        device.lose()
        self.runners = [runner for runner in self.devices if runner.away_since is None]
        back_at = self._world.clock.now() + self._world.scenario.faults.away_secs
        self._world.plan(back_at, lambda: self._bring_back(device))

    def _bring_back(self, device: SimulatedRunner) -> None:
        device.come_back()
        self.runners = [runner for runner in self.devices if runner.away_since is None]
        self._plan_loss(device)


def fingerprint_of(number: int) -> dict[str, Any]:
    """Return the fingerprint of a kind of device."""
    return {"name": f"simulated device, kind {number}"}


def _device(world: World, number: int) -> SimulatedRunner:
    scenario = world.scenario
    kind = fingerprint_of(number % scenario.n_fingerprints)
    is_slow = random.Random(f"{scenario.seed}/{number}").random() < scenario.faults.slow_devices
    return SimulatedRunner(world, f"device-{number}", kind, is_slow=is_slow)
