"""The final: the fastest candidates of each task that matters, timed again in turns.

A best of many noisy samples is too good by the luck of one. The few fastest
records of a task are measured side by side at the end, so that the winner and
its latency are what a fair race says, not what its lucky moment said.
"""

from collections.abc import Callable
from statistics import median

from sqlalchemy.orm import Session, sessionmaker

from records import bests, tasks
from records.models import BestRecord, MeasureRecord
from tuner.devices.device import Device
from tuner.measure.measurer import CandidateMeasurer, TaskUnderTest
from tuner.tuning.snapshot import JobSnapshot, TaskRow

_N_FINALISTS = 3
_N_TURNS = 5
# Only candidates this close to the fastest can win, only tasks this heavy matter.
_WITHIN = 1.10
_MIN_SHARE = 0.002
# What is read before a sample, in sizes of the model: activations and packing come on top of its
# weights, and a cache that is swept in circles keeps nothing once it is too small. With ResNet-18
# (47 MB) one size left the weights in a shared cache that they were not in when the network ran.
_SWEEPS = 3
_LEAST_FLUSH_BYTES = 32 * 2**20
_MOST_FLUSH_BYTES = 256 * 2**20


async def confirm(
    sessions: sessionmaker[Session],
    measurer: CandidateMeasurer,
    device: Device,
    snapshot: JobSnapshot,
    watcher: Callable[[TaskRow], None],
    model_bytes: int = 0,
) -> None:
    """Measure the finalists of every task that matters and has no confirmed winner yet.

    Args:
        sessions: Opens database sessions.
        measurer: Times them.
        device: Where.
        snapshot: The table.
        watcher: Told of every task.
        model_bytes: Size of the model: one that the caches do not hold finds nothing of its
            weights there when it runs again, so its kernels are timed that way.
    """
    flush_bytes = min(_SWEEPS * model_bytes, _MOST_FLUSH_BYTES)
    if flush_bytes < _LEAST_FLUSH_BYTES:
        flush_bytes = 0
    for row in snapshot.rows:
        if row.share < _MIN_SHARE:
            continue
        with sessions() as session:
            finalists = _finalists(session, row.task_id)
            subject = TaskUnderTest(
                row.task_id, row.workload, tasks.workload_ir(session, row.task_id)
            )
        if not finalists:
            continue
        watcher(row)
        traces = [record.trace for record in finalists]
        results = await measurer.compare(subject, traces, _N_TURNS, device, flush_bytes=flush_bytes)
        with sessions.begin() as session:
            for record, result in zip(finalists, results, strict=True):
                if result.run_secs is not None:
                    bests.confirm(session, record.id, result.run_secs)
            if any(result.run_secs is not None for result in results):
                bests.choose_confirmed(session, row.task_id)


def _finalists(session: Session, task_id: int) -> list[MeasureRecord]:
    """Return who races; nobody where the winner of an earlier final still stands."""
    best = session.get(BestRecord, task_id)
    if best is None or best.confirmed:
        return []
    top = bests.top_records(session, task_id, _N_FINALISTS)
    limit = _WITHIN * median(top[0].run_secs or [0.0])
    racing = [record for record in top if record.latency is not None and record.latency <= limit]
    # Whoever won a final before races again: samples of two days do not compare.
    champion = bests.champion(session, task_id)
    return racing if champion is None or champion in racing else [*racing, champion]
