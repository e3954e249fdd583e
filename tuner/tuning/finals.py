"""Finals: the fastest candidates of each task, timed again in turns.

The best of many noisy samples owes part of its rank to luck. The few fastest records of a task
are measured side by side at the end of a job, so that the winner and its latency are the result
of a fair race.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from records import bests, tasks
from records.models import BestRecord, MeasureRecord
from tuner.devices.device import Device
from tuner.errors import WorkError, last_line
from tuner.measure.comparison import compare
from tuner.measure.context import MeasureSetup, TaskUnderTest
from tuner.tuning.snapshot import TaskRow

_N_FINALISTS = 3
_N_TURNS = 5
# Only candidates this close to the fastest can win, only tasks with this share of the latency
# matter.
_MAX_RATIO = 1.10
_MIN_SHARE = 0.002
# Bytes read before a sample, in sizes of the model: activations and packing come on top of its
# weights, and a cache that is swept in circles keeps nothing once it is too small. With ResNet-18
# (47 MB) one size left the weights in a shared cache that they were not in when the network ran.
_SWEEPS = 3
_MIN_FLUSH_BYTES = 32 * 2**20
_MAX_FLUSH_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Final:
    """Race between the fastest records of one task."""

    task: TaskUnderTest
    finalists: Sequence[MeasureRecord]


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


def find_final(sessions: sessionmaker[Session], row: TaskRow) -> Final | None:
    """Return the final of a task.

    Returns:
        None if the task hardly matters, or the winner of an earlier final is still its best.
    """
    if row.share < _MIN_SHARE:
        return None
    with sessions() as session:
        finalists = _finalists(session, row.task_id)
        task = TaskUnderTest(row.task_id, row.workload, tasks.workload_ir(session, row.task_id))
    return Final(task, finalists) if finalists else None


async def run_final(
    sessions: sessionmaker[Session],
    setup: MeasureSetup,
    final: Final,
    device: Device,
    model_bytes: int = 0,
) -> None:
    """Measure the finalists of a task and store the winner.

    Args:
        sessions: Factory of database sessions.
        setup: Target and settings.
        final: The race.
        device: Device that times it.
        model_bytes: Size of the model. A model that the caches do not hold finds none of its
            weights there when it runs again, so its kernels are timed with flushed caches.

    Raises:
        DiskFull: If the disk is full.
        DeviceLost: If the device was lost.
    """
    flush_bytes = min(_SWEEPS * model_bytes, _MAX_FLUSH_BYTES)
    if flush_bytes < _MIN_FLUSH_BYTES:
        flush_bytes = 0
    traces = [record.trace for record in final.finalists]
    results = await compare(
        setup, final.task, traces, device, n_turns=_N_TURNS, flush_bytes=flush_bytes
    )
    with sessions.begin() as session:
        for record, result in zip(final.finalists, results, strict=True):
            if result.run_secs is not None:
                bests.confirm(session, record.id, result.run_secs)
        if any(result.run_secs is not None for result in results):
            bests.choose_confirmed(session, final.task.task_id)


def _finalists(session: Session, task_id: int) -> list[MeasureRecord]:
    """Return the records that race; none if the winner of an earlier final is still the best."""
    best = session.get(BestRecord, task_id)
    if best is None or best.confirmed:
        return []
    top = bests.top_records(session, task_id, _N_FINALISTS)
    limit = _MAX_RATIO * median(top[0].run_secs or [0.0])
    racing = [record for record in top if record.latency is not None and record.latency <= limit]
    # The winner of an earlier final races again, because samples of two days do not compare.
    champion = bests.champion(session, task_id)
    return racing if champion is None or champion in racing else [*racing, champion]
