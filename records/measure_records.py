"""Measure records: storing spent trials, each once, and reading them back."""

import hashlib
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import bindparam, func, or_, select
from sqlalchemy.orm import Session

from records import events, record_insert
from records.models import ImportedRound, MeasureRecord, Pick, now
from records.record_insert import Stored
from records.text import storable
from records.upsert import table


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
        conditions: Of the device while it was timed: clocks, temperature, and under
            ``throttled`` why it ran slower than it can; infinity and NaN become null.
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
    conditions: Mapping[str, Any] | None = None


class PastTrial(NamedTuple):
    """Trial as a search needs it; ``latency`` in seconds, None if it failed."""

    trace: str
    trace_hash: str
    module_hash: str | None
    latency: float | None
    error_kind: str | None


class Foreign(NamedTuple):
    """A record that another job paid for, or nobody; ``latency`` in seconds, None if it failed."""

    record_id: int
    task_id: int
    trace_hash: str
    latency: float | None
    verified: bool
    error_kind: str | None


class Counts(NamedTuple):
    """Trials spent on a task, and how many of them failed."""

    n_trials: int
    n_failed: int


def trace_hash(trace: str) -> str:
    """Return what names a trace within its task."""
    return hashlib.sha256(trace.encode()).hexdigest()[:32]


def add_record(session: Session, new: NewRecord) -> MeasureRecord | None:
    """Store a spent trial: a group of one, see :func:`add_records`.

    Returns:
        The record, or None if the task already has that trace.
    """
    (stored,) = add_records(session, [new])
    return None if stored is None else session.get_one(MeasureRecord, stored.record_id)


def add_records(session: Session, new: Sequence[NewRecord]) -> list[Stored | None]:
    """Store spent trials, of any tasks and jobs, and make the fastest verified ones the best.

    Of each task the fastest of the group, of equals the first, becomes the best record if it is
    faster than the one before. Who watches a job is told of its trials in the order given.

    Returns:
        What became of each; None if its task already has that trace, be it from earlier in the
        group: it counts once.

    Raises:
        ValueError: If ``run_secs`` holds no sample, or one that is no duration.
        sqlalchemy.exc.IntegrityError: If one has both samples and an error, or neither,
            or an unknown error kind, task or pick. Roll the transaction back then.
    """
    at = now()
    return record_insert.store(session, [_columns(record) | {"created": at} for record in new])


def traces_of_pick(session: Session, pick_id: int) -> set[str]:
    """Return the hashes of the traces that a pick has paid for."""
    return set(session.scalars(_TRACES_OF_PICK, {"of_pick": pick_id}))


def past_trials(session: Session, task_id: int, before_pick_id: int | None) -> list[PastTrial]:
    """Return what a task had measured before a pick, the oldest first.

    Args:
        session: The transaction.
        task_id: The task.
        before_pick_id: Only records of earlier picks and records of no pick, so that a
            resumed round proposes what it would have proposed; None for all.
    """
    wanted = _MEASURED if before_pick_id is None else _MEASURED_BEFORE
    rows = session.execute(wanted, {"of_task": task_id, "before": before_pick_id})
    return [PastTrial(*row) for row in rows]


def newest_id(session: Session) -> int:
    """Return the id of the newest record, 0 if there is none."""
    return session.scalar(_NEWEST) or 0


def foreign_since(
    session: Session, record_id: int, own_jobs: Sequence[int], limit: int = 10_000
) -> list[Foreign]:
    """Return records newer than one that none of these jobs paid for, the oldest first.

    It reads the newer records alone, those of the jobs too. PostgreSQL gives ids before it commits:
    whoever must miss nothing asks from a few groups before, and skips what it knows.

    Args:
        session: The transaction.
        record_id: Only records with larger ids.
        own_jobs: The jobs whose records are left out.
        limit: At most so many.
    """
    wanted = (
        select(
            MeasureRecord.id,
            MeasureRecord.task_id,
            MeasureRecord.trace_hash,
            MeasureRecord.latency,
            MeasureRecord.verified,
            MeasureRecord.error_kind,
        )
        .outerjoin(Pick, Pick.id == MeasureRecord.pick_id)
        .where(MeasureRecord.id > record_id)
        .where(or_(MeasureRecord.pick_id.is_(None), Pick.job_id.not_in(own_jobs)))
        .order_by(MeasureRecord.id)
        .limit(limit)
    )
    return [Foreign(*row) for row in session.execute(wanted)]


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


def _columns(new: NewRecord) -> dict[str, Any]:
    values = vars(new) | {"latency": None}
    if new.run_secs is not None:
        values["run_secs"] = _durations(new.run_secs)
        values["latency"] = statistics.median(values["run_secs"])
    if new.conditions is not None:
        values["conditions"] = events.finite(dict(new.conditions))
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


# Made once: to make them takes longer than the database takes to answer.
_RECORD = table(MeasureRecord).c
_NEWEST = select(func.max(_RECORD.id))
_TRACES_OF_PICK = select(_RECORD.trace_hash).where(_RECORD.pick_id == bindparam("of_pick"))
_MEASURED = (
    select(
        _RECORD.trace,
        _RECORD.trace_hash,
        _RECORD.module_hash,
        _RECORD.latency,
        _RECORD.error_kind,
    )
    .where(_RECORD.task_id == bindparam("of_task"))
    .order_by(_RECORD.id)
)
_MEASURED_BEFORE = _MEASURED.where(
    or_(_RECORD.pick_id.is_(None), _RECORD.pick_id < bindparam("before"))
)
