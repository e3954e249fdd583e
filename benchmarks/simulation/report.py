"""Results of a simulation: idle time of the devices, and cost for the coordinator."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Engine, event, func, select
from sqlalchemy.orm import Session

from benchmarks.simulation.calls import World
from benchmarks.simulation.clock import VirtualClock
from benchmarks.simulation.executor import SimulatedExecutor
from records.models import MeasureRecord, Pick

# Largest busy share of a device that is kept apart and only calibrated.
_MAX_CALIBRATION_SHARE = 0.2
# Outcome after which the coordinator retries, so that no trial ended.
_NO_END = "lost"


@dataclass
class Load:
    """Counts, and seconds of this thread's core and of waits for a server or a disk."""

    n_transactions: int = 0
    n_statements: int = 0
    cpu_secs: float = 0.0
    wait_secs: float = 0.0

    def since(self, before: "Load") -> "Load":
        """Return the difference to an earlier load."""
        return Load(
            self.n_transactions - before.n_transactions,
            self.n_statements - before.n_statements,
            self.cpu_secs - before.cpu_secs,
            self.wait_secs - before.wait_secs,
        )


class DatabaseMeter:
    """Counter of an engine's load, which charges the clock for waits for a server.

    SQLite works in the calling process. Its waits for the disk are reported but not charged: they
    cannot be distinguished from waits for a core that another process occupies.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self.load = Load()
        self._clock = clock
        self._began = 0.0, 0.0

    def watch(self, engine: Engine) -> None:
        """Start counting."""
        is_server = engine.dialect.name != "sqlite"
        event.listen(engine, "begin", self._count_transaction)
        event.listen(engine, "before_cursor_execute", self._begin)
        event.listen(engine, "after_cursor_execute", lambda *_: self._end(1, is_server=is_server))
        for name in ("do_commit", "do_rollback"):
            # SQLAlchemy has no event after either of them.
            setattr(engine.dialect, name, self._timed(getattr(engine.dialect, name), is_server))

    def _count_transaction(self, _connection: object) -> None:
        self.load.n_transactions += 1

    def _begin(self, *_: object) -> None:
        self._began = time.thread_time(), time.perf_counter()

    def _end(self, n_statements: int, *, is_server: bool) -> None:
        cpu_secs = time.thread_time() - self._began[0]
        wait_secs = max(time.perf_counter() - self._began[1] - cpu_secs, 0.0)
        if is_server:
            self._clock.charge(wait_secs)
        self.load.n_statements += n_statements
        self.load.cpu_secs += cpu_secs
        self.load.wait_secs += wait_secs

    def _timed(self, function: Callable[..., Any], is_server: bool) -> Callable[..., Any]:
        def timed(connection: Any) -> None:
            self._begin()
            function(connection)
            self._end(0, is_server=is_server)

        return timed


@dataclass(frozen=True)
class Snapshot:
    """State of a simulation at one moment; times in seconds.

    ``busy_secs`` and ``away_secs`` have one value for each device; ``outcomes`` are those of all
    runners and of the executor.
    """

    at: float
    worked_secs: float
    busy_secs: tuple[float, ...]
    away_secs: tuple[float, ...]
    outcomes: Counter[str]
    load: Load

    @property
    def n_trials(self) -> int:
        """Number of trials whose end was reported to the coordinator."""
        return sum(n for kind, n in self.outcomes.items() if kind != _NO_END)


@dataclass(frozen=True)
class Check:
    """Comparison of reported and stored trials; all numbers but the first must be 0.

    Attributes:
        n_records: Number of stored records.
        n_missing: Trials that ended and were not stored, or stored with another outcome.
        n_surplus: Records of trials that no device or builder reported.
        n_uncounted: Records that their picks do not count.
    """

    n_records: int
    n_missing: int
    n_surplus: int
    n_uncounted: int

    @property
    def is_clean(self) -> bool:
        """True if nothing was lost or counted twice."""
        return not (self.n_missing or self.n_surplus or self.n_uncounted)


@dataclass(frozen=True)
class Report:
    """Shares and rates of the time after the warm-up; times in seconds.

    Attributes:
        secs: Length of that time.
        n_trials: Trials that ended.
        n_rounds: The same as a number of full rounds.
        trials_per_sec: Rate of all devices together.
        idle_share: Idle share of the available devices, without slow ones that were kept apart.
        n_apart: Number of slow devices that were kept apart.
        cpu_share: Share of one core that the coordinator used, including its database driver.
        cpu_secs_per_trial: CPU time of the same.
        cpu_secs_per_round: CPU time of the same.
        transactions_per_trial: Number of database transactions.
        statements_per_trial: Number of database statements.
        database_secs_per_trial: CPU time inside the database driver.
        database_wait_secs_per_trial: Waits of the driver for a server or a disk.
        n_builders: Maximum number of concurrent calls of builders.
        busy_builders: Number of builders that this rate of trials keeps busy.
        peak_bytes: Peak memory of the process.
        check: Comparison over the whole run.
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
    """Return the current state of a simulation."""
    devices = executor.devices
    return Snapshot(
        at=world.clock.now(),
        worked_secs=world.clock.worked_secs,
        busy_secs=tuple(device.meter.busy_secs for device in devices),
        away_secs=tuple(device.away_secs() for device in devices),
        outcomes=sum((device.outcomes for device in devices), Counter(executor.outcomes)),
        load=replace(database.load),
    )


def make_report(
    executor: SimulatedExecutor, moments: Sequence[Snapshot], check: Check, peak_bytes: int
) -> Report:
    """Compare two moments; quotients by zero are 0."""
    scenario = executor.scenario
    before, after = moments
    secs = after.at - before.at
    n_trials = after.n_trials - before.n_trials
    worked, load = after.worked_secs - before.worked_secs, after.load.since(before.load)
    idle_secs, available_secs, n_apart = _idle(executor, before, after)
    trials, n_rounds = max(n_trials, 1), n_trials / scenario.trials_per_round
    preparing = scenario.costs.search_secs + scenario.costs.build_secs
    return Report(
        secs=secs,
        n_trials=n_trials,
        n_rounds=n_rounds,
        trials_per_sec=n_trials / secs,
        idle_share=idle_secs / max(available_secs, 1e-9),
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
    """Return idle seconds and available seconds of all devices, and the number kept apart."""
    idle_secs = available_secs = 0.0
    n_apart = 0
    for i, device in enumerate(executor.devices):
        busy = after.busy_secs[i] - before.busy_secs[i]
        available = after.at - before.at - (after.away_secs[i] - before.away_secs[i])
        if device.slowness > 1.0 and busy < _MAX_CALIBRATION_SHARE * available:
            n_apart += 1
            continue
        idle_secs += max(available - busy, 0.0)
        available_secs += available
    return idle_secs, available_secs, n_apart


def check_records(session: Session, outcomes: Counter[str], last_id: int) -> Check:
    """Compare the stored records with the reported outcomes.

    A trial that the coordinator gave up because its workers died, or those that compute what its
    outputs are compared with, is not reported and may be stored. A build that failed in a round
    whose device was lost later may be missing: the round builds it again elsewhere.

    Args:
        session: Session of the caller's transaction.
        outcomes: Number of reported trials by outcome.
        last_id: Id of the last record before the simulation.
    """
    kind = func.coalesce(MeasureRecord.error_kind, "timed")
    error_text = func.coalesce(MeasureRecord.error_text, "")
    is_unverified = error_text.contains("cannot be verified")
    rows = session.execute(
        select(kind, func.count()).where(MeasureRecord.id > last_id, ~is_unverified).group_by(kind)
    )
    stored = Counter[str]({row[0]: row[1] for row in rows})
    stored.pop("worker_lost", None)
    ended = Counter[str]({kind: n for kind, n in outcomes.items() if kind != _NO_END})
    missing = ended - stored
    missing.pop("build_error", None)
    everything = session.scalar(select(func.count()).select_from(MeasureRecord)) or 0
    counted = session.scalar(select(func.sum(Pick.n_measured))) or 0
    return Check(
        n_records=session.scalar(
            select(func.count()).where(MeasureRecord.id > last_id).select_from(MeasureRecord)
        )
        or 0,
        n_missing=missing.total(),
        n_surplus=(stored - ended).total(),
        n_uncounted=abs(everything - counted),
    )


def as_json(report: Report) -> dict[str, Any]:
    """Return a report as plain data."""
    return {**vars(report), "check": {**vars(report.check), "clean": report.check.is_clean}}
