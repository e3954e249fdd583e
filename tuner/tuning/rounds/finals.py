"""Finals: the candidates of each task that could be the fastest, timed again in turns.

The fastest of many noisy samples owes part of its rank to luck. At the end of a job all that could
win given their noise race by successive halving (Karnin, Koren, Somekh, ICML'13): every heat times
the remaining ones in turns, and the slower half drops out. All tasks have their first heat before
any has its second, so that the samples of a race are spread over the whole final, and a slow moment
of the machine affects neither one rival nor one task alone.

Races run in the order of their tasks' shares of the latency. If the final has a deadline, what no
longer fits is left out: a race that is not built by then, or a heat and those after it.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from records import bests, tasks
from records.models import MeasureRecord
from records.tuning.contenders import contenders
from tuner.devices.device import Device
from tuner.errors import WorkError, last_line
from tuner.measure.context import MeasureSetup, TaskUnderTest
from tuner.measure.interleaved_timing import InterleavedTiming
from tuner.tuning.tasks.snapshot import TaskRow

_LOG = logging.getLogger(__name__)

# Turns of each rival in the heats of a race; half of the rivals drop out after each but the last.
_TURNS = (2, 3, 4)
# Rivals of a task, and of one that hardly matters; only tasks with a share of the latency race.
_MAX_RIVALS = 8
_MAX_MINOR_RIVALS = 3
_MINOR_SHARE = 0.02
_MIN_TASK_SHARE = 0.002
# Part of the time of a final after which no build begins; heats take about as long as builds.
_BUILD_PART = 0.5
# Part of a turn that depends little on the latency, roughly: a flush of the caches, some checks.
_TURN_OVERHEAD_SECS = 0.005

# Returns the clock factor for a time of the engine's clock kernel; None for None.
ClockFactor = Callable[[float | None], float | None]


class Deadline:
    """Time limit of one final, which begins when this is made.

    Args:
        now: Clock, seconds.
        secs: Seconds that the final may take; inf without a limit.
    """

    def __init__(self, now: Callable[[], float], secs: float) -> None:
        self._now = now
        self._started = now()
        self._secs = secs

    @property
    def elapsed_secs(self) -> float:
        """Seconds since the final began."""
        return self._now() - self._started

    def may_build(self) -> bool:
        """Return whether another race may be built."""
        return self.elapsed_secs < _BUILD_PART * self._secs

    @property
    def build_secs(self) -> float | None:
        """Seconds after which races that are not built are left out; None without a limit."""
        return None if math.isinf(self._secs) else _BUILD_PART * self._secs

    @property
    def left_secs(self) -> float | None:
        """Seconds until the final is to end, at least 0; None without a limit."""
        return None if math.isinf(self._secs) else max(self._secs - self.elapsed_secs, 0.0)

    def fits(self, secs: float) -> bool:
        """Return whether work of this duration ends in time."""
        return self.elapsed_secs + secs <= self._secs


@dataclass
class Race:
    """Race between records of one task.

    Attributes:
        timing: Their builds.
        running: Positions of the rivals that have not dropped out.
        samples: Samples of each rival, seconds.
        clock_secs: Time of the engine's clock kernel in each heat.
        secs_per_turn: Duration of a turn of one rival in the last heat, seconds; None before the
            first.
    """

    task: TaskUnderTest
    rivals: Sequence[MeasureRecord]
    timing: InterleavedTiming
    running: list[int]
    samples: list[list[float]]
    clock_secs: list[float] = field(default_factory=list)
    secs_per_turn: float | None = None

    @property
    def relative_cost(self) -> float:
        """Duration of a turn relative to other races, by the rivals' latencies."""
        return _TURN_OVERHEAD_SECS + fmean(bests.latency_of(record) for record in self.rivals)

    async def run_heat(
        self, device: Device, n_turns: int, on_begin: Callable[[], None] = lambda: None
    ) -> None:
        """Time the remaining rivals; a rival that fails drops out.

        Args:
            device: Device that times them.
            on_begin: Called once the device is free.

        Raises:
            DiskFull: If the disk is full.
            DeviceLost: If the device was lost.
        """
        results = await self.timing.time(self.running, device, n_turns=n_turns, on_begin=on_begin)
        for index, result in zip(self.running, results, strict=True):
            self.samples[index].extend(result.run_secs or ())
            if result.clock_secs is not None:
                self.clock_secs.append(result.clock_secs)
        self.running = [
            index
            for index, result in zip(self.running, results, strict=True)
            if result.run_secs is not None
        ]

    def halve(self) -> None:
        """Let the slower half drop out."""
        self.running.sort(key=lambda index: (median(self.samples[index]), index))
        del self.running[math.ceil(len(self.running) / 2) :]

    @property
    def median_clock_secs(self) -> float | None:
        """Median time of the engine's clock kernel; None if it was not timed."""
        return median(self.clock_secs) if self.clock_secs else None

    def store(self, session: Session, clock_factor: float | None) -> None:
        """Confirm all that were timed, and make the fastest of the last heat the best."""
        for record, samples in zip(self.rivals, self.samples, strict=True):
            if samples:
                bests.confirm(session, record.id, samples, clock_factor)
        if self.running:
            finalists = [self.rivals[index].id for index in self.running]
            bests.choose_confirmed(session, self.task.task_id, finalists)


def check_any_measured(sessions: sessionmaker[Session], rows: Sequence[TaskRow]) -> None:
    """Make sure that a candidate of some task ran; the budget need not have reached every task.

    Raises:
        WorkError: If trials were spent, and none could be measured.
    """
    tried = [row for row in rows if row.n_trials]
    if not tried or any(math.isfinite(row.latency) for row in tried):
        return
    with sessions() as session:
        record = session.scalars(
            select(MeasureRecord)
            .where(MeasureRecord.task_id == tried[0].task_id)
            .order_by(MeasureRecord.id.desc())
            .limit(1)
        ).one()
    raise WorkError(
        f"no candidate of any task could be measured; the last one failed with "
        f"{record.error_kind}: {last_line(record.error_text) or 'no reason given'}"
    )


def find_races(
    sessions: sessionmaker[Session], setup: MeasureSetup, rows: Sequence[TaskRow]
) -> list[Race]:
    """Return the races of the tasks that matter and whose winner is in doubt.

    Those with the largest share of the latency come first.
    """
    if setup.evaluator.cache_flush:
        # The turns take the place of further samples.
        setup = replace(setup, evaluator=replace(setup.evaluator, min_repeat_ms=0))
    races = []
    with sessions() as session:
        for row in sorted(rows, key=lambda row: -row.share):
            if rivals := rivals_of(session, row):
                ir = tasks.workload_ir(session, row.task_id)
                task = TaskUnderTest(row.task_id, row.workload, ir)
                timing = InterleavedTiming(setup, task, [record.trace for record in rivals])
                races.append(
                    Race(task, rivals, timing, list(range(len(rivals))), [[] for _ in rivals])
                )
    return races


def rivals_of(session: Session, row: TaskRow) -> list[MeasureRecord]:
    """Return the records of a task that race; none if the task hardly matters."""
    if row.share < _MIN_TASK_SHARE:
        return []
    limit = _MAX_MINOR_RIVALS if row.share < _MINOR_SHARE else _MAX_RIVALS
    return contenders(session, row.task_id, limit)


class Final:
    """Final of one job.

    Args:
        races: The races; what matters most comes first.
        device: Device that times them.
        deadline: Time limit. The first heat of the first race begins whatever it says; whatever
            runs when the time is up ends there, and has no result.
        on_heat: Called before each heat of a race.
    """

    def __init__(
        self,
        races: Sequence[Race],
        device: Device,
        deadline: Deadline,
        on_heat: Callable[[Race], None],
    ) -> None:
        self._races = races
        self._device = device
        self._deadline = deadline
        self._on_heat = on_heat
        self._timed: list[Race] = []

    async def run(self) -> None:
        """Run the races.

        Raises:
            DiskFull: If the disk is full.
            DeviceLost: If the device was lost; no race may be stored.
        """
        try:
            async with asyncio.timeout(self._deadline.left_secs) as limit:
                racing = await self._build()
                for heat, n_turns in enumerate(_TURNS):
                    if heat:
                        for race in racing:
                            race.halve()
                    racing = [race for race in racing if await self._run_heat(race, n_turns)]
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            for race in self._races:
                race.timing.close()
        if len(self._timed) < len(self._races):
            _LOG.info("the final had time for %d of %d races", len(self._timed), len(self._races))

    def store(self, sessions: sessionmaker[Session], clock_factor: ClockFactor) -> None:
        """Store the winners of the races that had a heat.

        Args:
            sessions: Factory of database sessions.
            clock_factor: Returns the factor for a time of the engine's clock kernel.
        """
        # The first factor of a target stores its reference, in a transaction of its own.
        factors = [clock_factor(race.median_clock_secs) for race in self._timed]
        with sessions.begin() as session:
            for race, factor in zip(self._timed, factors, strict=True):
                race.store(session, factor)

    async def _build(self) -> list[Race]:
        """Build races, before any is timed; returns those built in time, and one at least.

        As many are under way as keep all builders busy.
        """
        built: list[int] = []
        waiting = deque(range(len(self._races)))

        async def build_next() -> None:
            while waiting and (waiting[0] == 0 or self._deadline.may_build()):
                index = waiting.popleft()
                try:
                    await self._races[index].timing.build()
                except BaseException:
                    waiting.clear()
                    raise
                built.append(index)

        n_builders = max((race.timing.n_builders for race in self._races), default=1)
        n_at_once = max(math.ceil(n_builders / _MAX_RIVALS), min(n_builders, 2), 1)
        builds = [asyncio.ensure_future(build_next()) for _ in range(n_at_once)]
        try:
            _, building = await asyncio.wait(builds, timeout=self._deadline.build_secs)
            while building and not built:
                _, building = await asyncio.wait(building, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for build in builds:
                build.cancel()
            # All end before an error is raised, so that what they have built can be removed.
            ends = await asyncio.gather(*builds, return_exceptions=True)
        for error in ends:
            if error is not None and not isinstance(error, asyncio.CancelledError):
                raise error
        return [self._races[index] for index in sorted(built)]

    async def _run_heat(self, race: Race, n_turns: int) -> bool:
        """Run a heat of a race if it fits; a race that misses one takes no part any more."""
        n_runs = len(race.running) * n_turns
        is_new = race.secs_per_turn is None
        is_required = is_new and race is self._races[0]
        fits = is_required or self._deadline.fits(n_runs * self._secs_per_turn(race))
        if not (n_runs and fits):
            return False
        self._on_heat(race)
        started = self._deadline.elapsed_secs

        def begin() -> None:
            nonlocal started
            started = self._deadline.elapsed_secs

        # Rounds of other jobs may have the device first, which the turns are not charged for.
        await race.run_heat(self._device, n_turns, begin)
        race.secs_per_turn = (self._deadline.elapsed_secs - started) / n_runs
        if is_new:
            self._timed.append(race)
        return True

    def _secs_per_turn(self, race: Race) -> float:
        """Return the duration of a turn; before the first heat of a race, from other races."""
        if race.secs_per_turn is not None:
            return race.secs_per_turn
        known = [
            each.secs_per_turn / each.relative_cost
            for each in self._races
            if each.secs_per_turn is not None
        ]
        return fmean(known) * race.relative_cost if known else 0.0
