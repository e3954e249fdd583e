"""Measure records: storing spent trials, each once, and reading them back."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from records import bests, events, sums
from records.models import ImportedRound, MeasureFeature, MeasureRecord, Pick
from records.statements import insert, insert_new
from records.texts import storable


@dataclass(frozen=True, kw_only=True)
class NewRecord:
    """A spent trial: either ``run_secs`` or ``error_kind`` is given, never both.

    Attributes:
        task_id: The task the trial was spent on.
        trace: The replayable decisions, JSON text.
        trace_hash: Names the trace within its task.
        worker: Who measured it.
        run_secs: Samples, seconds, at least one, finite and not negative.
        error_kind: One of ``models.ERROR_KINDS``.
        error_text: What the failed step said.
        pick_id: The pick that paid for it; None if it came from elsewhere.
        module_hash: Structural hash of the scheduled module.
        verified: The output was compared with a reference, and agrees.
        max_error: Largest difference from the reference; NaN counts as infinity.
        features: What a cost model sees of it.
    """

    task_id: int
    trace: str
    trace_hash: str
    worker: str
    run_secs: Sequence[float] | None = None
    error_kind: str | None = None
    error_text: str | None = None
    pick_id: int | None = None
    module_hash: str | None = None
    verified: bool = False
    max_error: float | None = None
    features: bytes | None = None


class Measured(NamedTuple):
    """What proposing needs of a record; ``latency`` in seconds, None if it failed."""

    trace: str
    trace_hash: str
    module_hash: str | None
    latency: float | None
    error_kind: str | None


class Counts(NamedTuple):
    """Trials spent on a task, and how many of them failed."""

    n_trials: int
    n_failed: int


def add_record(session: Session, new: NewRecord) -> MeasureRecord | None:
    """Store a spent trial, and make it the best record if it is verified and faster.

    Returns:
        The record, or None if the task already has that trace: it counts once.

    Raises:
        ValueError: If ``run_secs`` holds no sample, or one that is no duration.
        sqlalchemy.exc.IntegrityError: If it has both samples and an error, or neither,
            or an unknown error kind, task or pick.
    """
    columns = _columns(new)
    record_id = insert_new(session, MeasureRecord, columns)
    if record_id is None:
        return None
    payer = _count(session, record_id, columns)
    if new.features is not None:
        row = {"record_id": record_id, "features": new.features}
        session.execute(insert(session, MeasureFeature).values(**row))
    record = session.get_one(MeasureRecord, record_id)
    best = False
    if record.verified and record.latency is not None:
        best = bests.offer(session, record.task_id, record_id, record.latency)
    if payer is not None:
        _tell(session, payer, record, best=best)
    return record


def records_of_pick(session: Session, pick_id: int) -> list[MeasureRecord]:
    """Return the records that a pick paid for, the oldest first."""
    wanted = select(MeasureRecord).where(MeasureRecord.pick_id == pick_id)
    return list(session.scalars(wanted.order_by(MeasureRecord.id)))


def measured(session: Session, task_id: int, before_pick_id: int | None) -> list[Measured]:
    """Return what a task had measured before a pick, the oldest first.

    Args:
        session: The transaction.
        task_id: The task.
        before_pick_id: Only records of earlier picks and records of no pick, so that a
            resumed round proposes what it would have proposed; None for all.
    """
    wanted = select(
        MeasureRecord.trace,
        MeasureRecord.trace_hash,
        MeasureRecord.module_hash,
        MeasureRecord.latency,
        MeasureRecord.error_kind,
    ).where(MeasureRecord.task_id == task_id)
    if before_pick_id is not None:
        earlier = MeasureRecord.pick_id < before_pick_id
        wanted = wanted.where(or_(MeasureRecord.pick_id.is_(None), earlier))
    return [Measured(*row) for row in session.execute(wanted.order_by(MeasureRecord.id))]


def count_by_task(session: Session, task_ids: Iterable[int]) -> dict[int, Counts]:
    """Count the trials of each task; zeros for a task without any."""
    wanted = list(task_ids)
    counts = dict.fromkeys(wanted, Counts(0, 0))
    for model in (Pick, ImportedRound):
        rows = session.execute(
            select(model.task_id, func.sum(model.n_measured), func.sum(model.n_failed))
            .where(model.task_id.in_(wanted))
            .group_by(model.task_id)
        )
        for task_id, n_trials, n_failed in rows:
            before = counts[task_id]
            counts[task_id] = Counts(before.n_trials + n_trials, before.n_failed + n_failed)
    return counts


def own_trials(session: Session, job_id: int) -> dict[int, int]:
    """Count the trials that the picks of a job paid for, by task id."""
    rows = session.execute(
        select(Pick.task_id, func.sum(Pick.n_measured))
        .where(Pick.job_id == job_id, Pick.n_measured > 0)
        .group_by(Pick.task_id)
    )
    return {task_id: n for task_id, n in rows}  # noqa: C416  rows are not pairs to mypy


def _tell(session: Session, payer: sums.Payer, record: MeasureRecord, *, best: bool) -> None:
    """Tell those who watch the job of a record."""
    told = {
        "pick": payer.sequence,
        "task_id": record.task_id,
        "record": record.id,
        "latency_secs": record.latency,
        "error_kind": record.error_kind,
        "best": best,
    }
    events.add_event(session, payer.job_id, "trial", told)


def _count(session: Session, record_id: int, columns: dict[str, object]) -> sums.Payer | None:
    total = sums.Sums()
    total.add(columns)
    pick_id, kind = columns["pick_id"], columns["error_kind"]
    if not isinstance(pick_id, int):
        sums.add_to_imported(session, int(str(columns["task_id"])), total)
        return None
    payer = sums.add_to_pick(session, pick_id, total)
    if isinstance(kind, str):
        sums.add_failure(session, payer.job_id, kind, record_id)
    return payer


def _columns(new: NewRecord) -> dict[str, object]:
    values = {name: getattr(new, name) for name in new.__dataclass_fields__ if name != "features"}
    if new.run_secs is not None:
        values["run_secs"] = _durations(new.run_secs)
        values["latency"] = statistics.median(values["run_secs"])
    if new.error_text is not None:
        values["error_text"] = storable(new.error_text)
    if new.max_error is not None and math.isnan(new.max_error):
        values["max_error"] = math.inf
    return values


def _durations(samples: Sequence[float]) -> list[float]:
    secs = [float(sample) for sample in samples]
    if not secs or not all(math.isfinite(sample) and sample >= 0.0 for sample in secs):
        raise ValueError(f"run times must be finite seconds, at least one, got {secs}")
    return secs
