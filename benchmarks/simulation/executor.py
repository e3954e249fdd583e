"""Simulated fleet: builders, and devices that come and go."""

import heapq
import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from benchmarks.simulation import kernels
from benchmarks.simulation.calls import SimulatedCall, World, fate
from tuner.cost_models import blobs
from tuner.engines.base import (
    BuildRequest,
    BuildResult,
    RunRequest,
    RunResult,
    SearchRequest,
    TargetInfo,
)
from tuner.errors import DeviceLost
from tuner.workers.base import Call, CallTimeout
from tuner.workers.utilisation import UtilisationMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tuner.devices.runners.base import Runner

_HOUR = 3600.0
# Training time of XGBoost on two cores: 0.96 s for 5,000 records and 2.14 s for 20,000; model size.
_TRAIN_SECS = 0.57
_TRAIN_SECS_PER_RECORD = 7.9e-5
_MODEL_BYTES = 214_000

_SLOWNESS = 3.0
_N_SAMPLES = 3
_DESCRIBE_SECS = 0.01


class SimulatedRunner:
    """Simulated device; see :class:`tuner.devices.runners.base.Runner`.

    Args:
        world: Shared simulation state.
        name: Name of the device.
        fingerprint: Fingerprint of its kind.
        is_slow: True if its latencies and runs take three times as long.

    Attributes:
        slowness: Factor on its latencies and on the time of its runs.
        outcomes: Number of trials reported to the coordinator, by error kind or "timed".
        away_since: Time of its loss in seconds; None if it is available.
    """

    shares_cores = False

    def __init__(
        self, world: World, name: str, fingerprint: dict[str, Any], *, is_slow: bool = False
    ) -> None:
        self.name = name
        self.meter = UtilisationMeter(clock=world.clock.now)
        self.outcomes: Counter[str] = Counter()
        self.away_since: float | None = None
        self._away_secs = 0.0
        self._world = world
        self._fingerprint = fingerprint
        self.slowness = _SLOWNESS if is_slow else 1.0
        self._free_at = 0.0
        self._calls: dict[SimulatedCall, bool] = {}

    def describe(self, spec: str) -> SimulatedCall:
        """Describe every target alike."""
        info = TargetInfo(spec, "simulated", self._fingerprint)
        return self._call((_DESCRIBE_SECS, info), _DESCRIBE_SECS, is_trial=False)

    def measure(self, function: str, *args: Any, timeout_secs: float) -> SimulatedCall:
        """Simulate a run or a final."""
        with self._world.handing_over():
            functions: dict[str, Callable[..., tuple[float, Any]]] = {
                "run": self._run,
                "run_interleaved": self._race,
            }
            secs, outcome = functions[function](*args)
            is_trial = function == "run" and args[0].artifact != kernels.UNSCHEDULED
            return self._call((secs * self.slowness, outcome), timeout_secs, is_trial=is_trial)

    def close(self) -> None:
        """Do nothing, because nothing is held."""

    def away_secs(self) -> float:
        """Return the seconds that it was lost in all."""
        now = self._world.clock.now()
        return self._away_secs + (0.0 if self.away_since is None else now - self.away_since)

    def lose(self) -> None:
        """Lose the device with its calls."""
        self.away_since = self._world.clock.now()
        for call, has_begun in self._calls.items():
            if has_begun:
                self.meter.end()
            call.end(DeviceLost(f"device {self.name} was lost"))
        self._calls.clear()

    def come_back(self) -> None:
        """Make the device available again."""
        self._away_secs = self.away_secs()
        self.away_since = None
        self._free_at = 0.0

    def _run(self, request: RunRequest) -> tuple[float, Any]:
        costs, faults = self._world.scenario.costs, self._world.scenario.faults
        latency, cost = kernels.run(request.artifact)
        is_candidate = request.artifact != kernels.UNSCHEDULED
        if is_candidate and self._world.happens(faults.hangs):
            return float("inf"), None
        secs = cost * costs.run_secs
        if is_candidate and self._world.happens(faults.run_errors):
            return secs, RunResult(error_kind="run_error", error_text="simulated failure")
        return secs, RunResult((latency * self.slowness,) * _N_SAMPLES, max_error=0.0)

    def _race(self, requests: list[RunRequest], n_turns: int) -> tuple[float, Any]:
        results = [
            RunResult((kernels.run(request.artifact)[0] * self.slowness,) * n_turns)
            for request in requests
        ]
        return self._world.scenario.costs.run_secs * len(requests) * n_turns, results

    def _call(
        self, work: tuple[float, Any], timeout_secs: float, *, is_trial: bool
    ) -> SimulatedCall:
        """Do work after all earlier calls."""
        world, call = self._world, SimulatedCall(self._world.loop.create_future())
        now = world.clock.now()
        if self.away_since is not None:
            call.end(DeviceLost(f"device {self.name} was lost"))
            return call
        secs, outcome = fate(world, *work, timeout_secs)
        begin = max(now, self._free_at)
        self._free_at = begin + secs
        self._calls[call] = False
        world.plan(begin, lambda: self._begin(call))
        world.plan(self._free_at, lambda: self._end(call, outcome, is_trial=is_trial))
        return call

    def _begin(self, call: SimulatedCall) -> None:
        if call in self._calls:
            self._calls[call] = True
            self.meter.begin()

    def _end(self, call: SimulatedCall, outcome: Any, *, is_trial: bool) -> None:
        if self._calls.pop(call, None) is None:
            return
        self.meter.end()
        if call.end(outcome) and is_trial:
            self.outcomes[_kind_of(outcome)] += 1


def _kind_of(outcome: Any) -> str:
    if isinstance(outcome, CallTimeout):
        return "run_timeout"
    return (outcome.error_kind or "timed") if isinstance(outcome, RunResult) else "lost"


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
