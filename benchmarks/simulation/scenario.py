"""What a simulation is asked: how many devices and tasks, what work takes, what goes wrong."""

import math
from dataclasses import dataclass, field, fields

from tuner.errors import RequestError

# Builders beyond those that are busy all the time, so that rounds need not wait in line.
_SPARE_BUILDERS = 1.25


@dataclass(frozen=True)
class Costs:
    """What the work of one trial takes, seconds.

    Attributes:
        search_secs: Of a builder; three tenths of what a trial took in the recorded curves, on
            both cores of that machine.
        build_secs: Of a builder; NVRTC needs 1.0 to 1.7 s for a kernel.
        run_secs: Of a device; a GPU is asked for five trials a second. Tasks differ as the
            recorded ones do.
        call_secs: Of the coordinator's core, for every call that it makes to a worker. What a
            call costs depends on the executor, and simulated calls by themselves cost nothing.

    Raises:
        RequestError: If one is negative or no number.
    """

    search_secs: float = 0.2
    build_secs: float = 1.35
    run_secs: float = 0.2
    call_secs: float = 0.0

    def __post_init__(self) -> None:
        for each in fields(self):
            _check(each.name, getattr(self, each.name), math.inf)


@dataclass(frozen=True)
class Faults:
    """How often work goes wrong.

    Attributes:
        build_errors: Share of builds that fail.
        run_errors: Share of runs that fail.
        hangs: Share of runs that never end, and cost their time-out.
        worker_deaths: Share of calls that take their worker with them.
        device_losses: Losses of each device in an hour.
        away_secs: Until a lost device is back, seconds.
        slow_devices: Share of devices that are three times slower than the others.

    Raises:
        RequestError: If one is negative or no number, or a share lies above 1.
    """

    build_errors: float = 0.01
    run_errors: float = 0.01
    hangs: float = 0.0005
    worker_deaths: float = 0.0005
    device_losses: float = 0.1
    away_secs: float = 60.0
    slow_devices: float = 0.01

    def __post_init__(self) -> None:
        for each in fields(self):
            is_share = each.name not in {"device_losses", "away_secs"}
            _check(each.name, getattr(self, each.name), 1.0 if is_share else math.inf)


@dataclass(frozen=True)
class Scenario:
    """A fleet, and what it is given to do.

    Attributes:
        n_devices: Devices.
        n_networks: Networks, each with a job.
        n_tasks: Tasks, of all networks together.
        n_fingerprints: Kinds of device, over which devices and networks are spread.
        builders: Calls that builders make side by side; None: as many as keep the devices busy.
        secs: Virtual time, seconds.
        warm_up_secs: Of it, not counted in shares and rates: until every device had work.
        trials_per_round: Trials that one pick buys.
        seed: Seeds every draw.
        costs: What work takes.
        faults: What goes wrong.

    Raises:
        RequestError: If there is nothing of something, or less than one task a network.
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
        """Calls that builders make side by side."""
        if self.builders is not None:
            return self.builders
        return max(math.ceil(self.busy_builders * _SPARE_BUILDERS), 2)

    @property
    def busy_builders(self) -> float:
        """Builders that work all the time while every device does."""
        preparing = self.costs.search_secs + self.costs.build_secs
        return self.n_devices * preparing / max(self.costs.run_secs, 1e-9)


def _check(name: str, value: float, most: float) -> None:
    if not 0.0 <= value <= most or value == math.inf:
        limit = "at least 0" if most == math.inf else f"from 0 to {most:g}"
        raise RequestError(f"{name} must be {limit}, got {value}")
