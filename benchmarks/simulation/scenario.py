"""Parameters of a simulation: devices, tasks, cost of work, faults."""

import math
from dataclasses import dataclass, field, fields

from tuner.errors import RequestError

# Spare builders beyond those that are always busy, so that rounds need not queue.
_SPARE_BUILDERS = 1.25


@dataclass(frozen=True)
class Costs:
    """Cost of the work of one trial, in seconds.

    Attributes:
        search_secs: Time of a builder to find a candidate; three tenths of a trial in the recorded
            curves, on both cores of that machine.
        build_secs: Time of a builder to build it; NVRTC needs 1.0 to 1.7 s for a kernel.
        run_secs: Time of a device to run it; the goal for a GPU is five trials a second. Tasks
            differ as the recorded ones do.
        call_secs: CPU time of the coordinator for every call to a worker. The cost of a call
            depends on the executor; a simulated call itself costs nothing.

    Raises:
        RequestError: If one is negative or not a number.
    """

    search_secs: float = 0.2
    build_secs: float = 1.35
    run_secs: float = 0.2
    call_secs: float = 0.0

    def __post_init__(self) -> None:
        for cost in fields(self):
            _check(cost.name, getattr(self, cost.name), math.inf)


@dataclass(frozen=True)
class Faults:
    """Rates of faults.

    Attributes:
        build_errors: Share of builds that fail.
        run_errors: Share of runs that fail.
        hangs: Share of runs that never end and use up their time-out.
        worker_deaths: Share of calls that end their worker.
        device_losses: Losses of each device per hour.
        away_secs: Seconds until a lost device returns.
        slow_devices: Share of devices that are three times slower than the others.

    Raises:
        RequestError: If one is negative or not a number, or a share lies above 1.
    """

    build_errors: float = 0.01
    run_errors: float = 0.01
    hangs: float = 0.0005
    worker_deaths: float = 0.0005
    device_losses: float = 0.1
    away_secs: float = 60.0
    slow_devices: float = 0.01

    def __post_init__(self) -> None:
        for fault in fields(self):
            is_share = fault.name not in {"device_losses", "away_secs"}
            _check(fault.name, getattr(self, fault.name), 1.0 if is_share else math.inf)


@dataclass(frozen=True)
class Scenario:
    """Fleet and its work.

    Attributes:
        n_devices: Number of devices.
        n_networks: Number of networks, each with a job.
        n_tasks: Number of tasks of all networks.
        n_fingerprints: Number of device kinds that devices and networks are spread over.
        builders: Number of concurrent calls of builders; None for enough to keep the devices busy.
        secs: Virtual time in seconds.
        warm_up_secs: Part of it that shares and rates exclude, until every device has work.
        trials_per_round: Number of trials that one pick buys.
        seed: Seed of all random numbers.
        costs: Cost of work.
        faults: Rates of faults.

    Raises:
        RequestError: If a number is below 1, or there are fewer tasks than networks.
    """

    n_devices: int = 64
    n_networks: int = 20
    n_tasks: int = 1000
    n_fingerprints: int = 1
    builders: int | None = None
    secs: float = 600.0
    warm_up_secs: float = 120.0
    trials_per_round: int = 64
    seed: int = 0
    costs: Costs = field(default_factory=Costs)
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        for name in ("n_devices", "n_networks", "n_fingerprints", "trials_per_round"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name, most in (("n_tasks", None), ("n_fingerprints", self.n_devices)):
            if most is None and self.n_tasks < self.n_networks:
                raise RequestError(f"{self.n_tasks} tasks are too few for {self.n_networks}")
            if most is not None and getattr(self, name) > most:
                raise RequestError(f"{most} devices cannot be of {self.n_fingerprints} kinds")
        if not 0.0 <= self.warm_up_secs < self.secs < math.inf:
            raise RequestError(
                f"a warm-up of {self.warm_up_secs:g} s leaves nothing of {self.secs:g} s"
            )

    @property
    def n_builders(self) -> int:
        """Number of concurrent calls of builders."""
        if self.builders is not None:
            return self.builders
        return max(math.ceil(self.busy_builders * _SPARE_BUILDERS), 2)

    @property
    def busy_builders(self) -> float:
        """Number of builders that are always busy while all devices are."""
        preparing = self.costs.search_secs + self.costs.build_secs
        return self.n_devices * preparing / max(self.costs.run_secs, 1e-9)


def _check(name: str, value: float, most: float) -> None:
    if not 0.0 <= value <= most or value == math.inf:
        limit = "at least 0" if most == math.inf else f"from 0 to {most:g}"
        raise RequestError(f"{name} must be {limit}, got {value}")
