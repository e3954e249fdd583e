"""Finals: the candidates of each task that could be the fastest, timed again in turns.

The fastest of many noisy samples owes part of its rank to luck. At the end of a job all that could
win given their noise race by successive halving (Karnin, Koren, Somekh, ICML'13): every heat times
the remaining ones in turns, and the slower half drops out. All tasks have their first heat before
any has its second, so that the samples of a race are spread over the whole final, and a slow moment
of the machine affects neither one rival nor one task alone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from records import bests, tasks
from records.contenders import contenders
from records.models import MeasureRecord
from tuner.devices.device import Device
from tuner.errors import WorkError, last_line
from tuner.measure.context import MeasureSetup, TaskUnderTest
from tuner.measure.interleaved_timing import InterleavedTiming
from tuner.tuning.snapshot import TaskRow

# Turns of each rival in the heats of a race; half of the rivals drop out after each but the last.
_TURNS = (2, 3, 4)
# Rivals of a task, and of one that hardly matters; only tasks with a share of the latency race.
_MAX_RIVALS = 8
_MAX_MINOR_RIVALS = 3
_MINOR_SHARE = 0.02
_MIN_SHARE = 0.002

# Returns the clock factor for a time of the engine's clock kernel; None for None.
ClockFactor = Callable[[float | None], float | None]


@dataclass
class Race:
    """Race between records of one task.

    Attributes:
        task: The task.
        rivals: Records that race.
        timing: Their builds.
        running: Positions of the rivals that have not dropped out.
        samples: Samples of each rival, seconds.
        clock_secs: Time of the engine's clock kernel in each heat.
    """

    task: TaskUnderTest
    rivals: Sequence[MeasureRecord]
    timing: InterleavedTiming
    running: list[int]
    samples: list[list[float]]
    clock_secs: list[float] = field(default_factory=list)

    async def run_heat(self, device: Device, n_turns: int) -> None:
        """Time the rivals that are left; those that fail drop out.

        Raises:
            DiskFull: If the disk is full.
            DeviceLost: If the device was lost.
        """
        results = await self.timing.time(self.running, device, n_turns=n_turns)
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
    """Return the races of the tasks that matter and whose winner is in doubt."""
    if setup.evaluator.cache_flush:
        # The turns take the place of further samples.
        setup = replace(setup, evaluator=replace(setup.evaluator, min_repeat_ms=0))
    races = []
    with sessions() as session:
        for row in rows:
            if row.share < _MIN_SHARE:
                continue
            limit = _MAX_MINOR_RIVALS if row.share < _MINOR_SHARE else _MAX_RIVALS
            rivals = contenders(session, row.task_id, limit)
            if rivals:
                ir = tasks.workload_ir(session, row.task_id)
                task = TaskUnderTest(row.task_id, row.workload, ir)
                races.append(_race(setup, task, rivals))
    return races


async def run_finals(
    sessions: sessionmaker[Session],
    races: Sequence[Race],
    device: Device,
    clock_factor: ClockFactor,
    on_heat: Callable[[Race], None],
) -> None:
    """Run races and store their winners.

    Args:
        sessions: Factory of database sessions.
        races: The races.
        device: Device that times them.
        clock_factor: Returns the factor for a time of the engine's clock kernel.
        on_heat: Called before each heat of a race.

    Raises:
        DiskFull: If the disk is full.
        DeviceLost: If the device was lost; no race is stored.
    """
    try:
        for race in races:
            await race.timing.build()
        for heat, n_turns in enumerate(_TURNS):
            for race in races:
                if heat:
                    race.halve()
                on_heat(race)
                await race.run_heat(device, n_turns)
    finally:
        for race in races:
            race.timing.close()
    # The first factor of a target stores its reference, in a transaction of its own.
    factors = [clock_factor(race.median_clock_secs) for race in races]
    with sessions.begin() as session:
        for race, factor in zip(races, factors, strict=True):
            race.store(session, factor)


def _race(setup: MeasureSetup, task: TaskUnderTest, rivals: Sequence[MeasureRecord]) -> Race:
    timing = InterleavedTiming(setup, task, [record.trace for record in rivals])
    return Race(task, rivals, timing, list(range(len(rivals))), [[] for _ in rivals])
