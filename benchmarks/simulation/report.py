"""What a simulation came to: how idle the devices were, and what the coordinator took for it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from benchmarks.simulation.calls import World
from benchmarks.simulation.database_load import DatabaseMeter, Load
from benchmarks.simulation.executor import SimulatedExecutor
from records.models import MeasureRecord, Pick

# What a device is busy with that is only compared with others, as a share of the time.
_MOST_CALIBRATION = 0.2
# Told to a coordinator that then tries again: no trial ended.
_NO_END = "lost"


@dataclass(frozen=True)
class Snapshot:
    """Where a simulation is at one moment; times in seconds, ``told`` as runners count it.

    ``busy_secs`` and ``away_secs`` are of each device.
    """

    at: float
    worked_secs: float
    busy_secs: tuple[float, ...]
    away_secs: tuple[float, ...]
    told: Counter[str]
    load: Load

    @property
    def n_trials(self) -> int:
        """Trials whose end the coordinator was told of."""
        return sum(n for kind, n in self.told.items() if kind != _NO_END)


@dataclass(frozen=True)
class Check:
    """What the coordinator was told against what it stored; every number but the first is 0.

    Attributes:
        n_records: Stored.
        n_missing: Trials that ended and were not stored, or stored as something else.
        n_surplus: Records of trials that no device or builder told of.
        n_uncounted: Records that their picks do not count.
    """

    n_records: int
    n_missing: int
    n_surplus: int
    n_uncounted: int

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost, and nothing counted twice."""
        return not (self.n_missing or self.n_surplus or self.n_uncounted)


@dataclass(frozen=True)
class Report:
    """Shares and rates of the time after the warm-up; times in seconds.

    Attributes:
        secs: Of that time.
        n_trials: Trials that ended.
        n_rounds: Rounds that those are, of full size.
        trials_per_sec: Of all devices together.
        idle_share: Of the devices that were there, but for slow ones that were kept apart.
        n_apart: Slow devices that were.
        cpu_share: Of one core, by the coordinator, its database driver included.
        cpu_secs_per_trial: Likewise.
        cpu_secs_per_round: Likewise.
        transactions_per_trial: Of the database.
        statements_per_trial: Of the database.
        database_secs_per_trial: Inside the database driver, on the coordinator's core.
        database_wait_secs_per_trial: Waiting there for a server or a disk.
        n_builders: Calls that builders could make side by side.
        busy_builders: That so many trials keep busy.
        peak_bytes: Most memory of the process.
        check: Of the whole time.
    """

    secs: float
    n_trials: int
    n_rounds: float
    trials_per_sec: float
    idle_share: float
    n_apart: int
    cpu_share: float
    cpu_secs_per_trial: float
    cpu_secs_per_round: float
    transactions_per_trial: float
    statements_per_trial: float
    database_secs_per_trial: float
    database_wait_secs_per_trial: float
    n_builders: int
    busy_builders: float
    peak_bytes: int
    check: Check


def take_snapshot(world: World, executor: SimulatedExecutor, database: DatabaseMeter) -> Snapshot:
    """Note where a simulation is."""
    devices = executor.devices
    return Snapshot(
        at=world.clock.now(),
        worked_secs=world.clock.worked_secs,
        busy_secs=tuple(device.meter.busy_secs for device in devices),
        away_secs=tuple(device.away_secs() for device in devices),
        told=sum((device.told for device in devices), Counter(executor.told)),
        load=replace(database.load),
    )


def make_report(
    executor: SimulatedExecutor, moments: Sequence[Snapshot], check: Check, peak_bytes: int
) -> Report:
    """Compare two moments; what would be divided by nothing is 0."""
    scenario = executor.scenario
    before, after = moments
    secs = after.at - before.at
    n_trials = after.n_trials - before.n_trials
    worked, load = after.worked_secs - before.worked_secs, after.load.since(before.load)
    idle_secs, there_secs, n_apart = _idle(executor, before, after)
    trials, n_rounds = max(n_trials, 1), n_trials / scenario.trials_per_round
    preparing = scenario.costs.search_secs + scenario.costs.build_secs
    return Report(
        secs=secs,
        n_trials=n_trials,
        n_rounds=n_rounds,
        trials_per_sec=n_trials / secs,
        idle_share=idle_secs / max(there_secs, 1e-9),
        n_apart=n_apart,
        cpu_share=worked / secs,
        cpu_secs_per_trial=worked / trials,
        cpu_secs_per_round=worked / trials * scenario.trials_per_round,
        transactions_per_trial=load.n_transactions / trials,
        statements_per_trial=load.n_statements / trials,
        database_secs_per_trial=load.cpu_secs / trials,
        database_wait_secs_per_trial=load.wait_secs / trials,
        n_builders=scenario.n_builders,
        busy_builders=n_trials / secs * preparing,
        peak_bytes=peak_bytes,
        check=check,
    )


def _idle(
    executor: SimulatedExecutor, before: Snapshot, after: Snapshot
) -> tuple[float, float, int]:
    """Add up for how long devices had nothing to do, and were there; and who was kept apart."""
    idle_secs = there_secs = 0.0
    n_apart = 0
    for i, device in enumerate(executor.devices):
        busy = after.busy_secs[i] - before.busy_secs[i]
        there = after.at - before.at - (after.away_secs[i] - before.away_secs[i])
        if device.slowness > 1.0 and busy < _MOST_CALIBRATION * there:
            n_apart += 1
            continue
        idle_secs += max(there - busy, 0.0)
        there_secs += there
    return idle_secs, there_secs, n_apart


def check_records(session: Session, told: Counter[str], last_id: int) -> Check:
    """Compare what is stored with what the coordinator was told.

    A trial that the coordinator gave up, because its workers died under it, is told of by nobody
    and may be stored. A build that failed in a round whose device was then lost may not be: the
    round builds it again elsewhere.

    Args:
        session: The transaction.
        told: How trials ended.
        last_id: Records up to this one were there before.
    """
    kind = func.coalesce(MeasureRecord.error_kind, "timed")
    rows = session.execute(
        select(kind, func.count()).where(MeasureRecord.id > last_id).group_by(kind)
    )
    stored = Counter[str]({row[0]: row[1] for row in rows})
    n_records = stored.total()
    stored.pop("worker_lost", None)
    ended = Counter[str]({kind: n for kind, n in told.items() if kind != _NO_END})
    missing = ended - stored
    missing.pop("build_error", None)
    everything = session.scalar(select(func.count()).select_from(MeasureRecord)) or 0
    counted = session.scalar(select(func.sum(Pick.n_measured))) or 0
    return Check(
        n_records=n_records,
        n_missing=missing.total(),
        n_surplus=(stored - ended).total(),
        n_uncounted=abs(everything - counted),
    )


def as_json(report: Report) -> dict[str, Any]:
    """Return a report as plain data."""
    return {**vars(report), "check": {**vars(report.check), "clean": report.check.is_clean}}
