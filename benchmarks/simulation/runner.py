"""Simulated device, which works, fails sometimes, and is lost sometimes."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from benchmarks.simulation import kernels
from benchmarks.simulation.calls import SimulatedCall, World, fate
from tuner.engines.base import RunRequest, RunResult, TargetInfo
from tuner.errors import DeviceLost
from tuner.workers.base import CallTimeout
from tuner.workers.utilisation import UtilisationMeter

if TYPE_CHECKING:
    from collections.abc import Callable

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
