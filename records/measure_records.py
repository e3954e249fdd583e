"""Measure records: storing spent trials, each exactly once, and reading them back."""

import hashlib
import math
import statistics
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import bindparam, func, or_, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningInsert

from records import bests
from records.models import MeasureFeature, MeasureRecord, Pick, Task, now
from records.storage.text import storable
from records.storage.upsert import built_once, table
from records.tuning import aggregates, events

# Columns of a record and its features, by name; the id is added when the row is stored.
Row = dict[str, Any]


class NewRecord(NamedTuple):
    """A spent trial: either ``run_secs`` or ``error_kind`` is given, never both.

    Attributes:
        task_id: Task that the trial was spent on.
        trace: Replayable decisions, JSON text.
        trace_hash: Hash that identifies the trace within its task.
        worker: Device or process that measured the trial.
        run_secs: Samples, seconds, at least one, finite and not negative.
        error_kind: One of ``models.ERROR_KINDS``.
        error_text: Message of the step that failed.
        pick_id: Pick that paid for the trial; None if no pick did.
        module_hash: Structural hash of the scheduled module.
        verified: True if the output was compared with a reference and agrees.
        max_error: Largest difference from the reference; NaN is stored as infinity.
        clock_factor: Factor that divides the drift of the device's clock out of the samples,
            finite and positive; None if the drift is unknown.
        features: Input of a cost model.
        conditions: Clocks and temperature of the device during the measurement, and under
            ``throttled`` the reason why it ran below its speed; infinity and NaN become null.
        origin: Source that proposed the candidate; None if unknown.
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
    clock_factor: float | None = None
    features: bytes | None = None
    conditions: Mapping[str, Any] | None = None
    origin: str | None = None


class StoredRecord(NamedTuple):
    """A record that was inserted; ``best`` is true if it is now the best of its task."""

    record_id: int
    latency: float | None
    best: bool


class PastTrial(NamedTuple):
    """The part of a record that a search needs; ``latency`` in seconds, None if it failed."""

    trace: str
    trace_hash: str
    module_hash: str | None
    latency: float | None
    error_kind: str | None


class ForeignRecord(NamedTuple):
    """A record that another job or no job paid for; ``latency`` in seconds, None if it failed."""

    record_id: int
    task_id: int
    trace_hash: str
    latency: float | None
    verified: bool
    error_kind: str | None


def trace_hash(trace: str) -> str:
    """Return the hash that identifies a trace within its task."""
    return hashlib.sha256(trace.encode()).hexdigest()[:32]


def add_record(session: Session, new: NewRecord) -> MeasureRecord | None:
    """Store one spent trial; see :func:`add_records`.

    Returns:
        The record, or None if the task already has that trace.
    """
    (stored,) = add_records(session, [new])
    return None if stored is None else session.get_one(MeasureRecord, stored.record_id)


def add_records(session: Session, new: Sequence[NewRecord]) -> list[StoredRecord | None]:
    """Store spent trials of any tasks and jobs, and update totals, best records and events.

    The fastest verified trial of each task, the first among equals, becomes the best record if
    it is faster than the current one. The events of a job appear in the order given.

    Returns:
        One entry for each trial; None if its task already has that trace, from an earlier
        transaction or from earlier in this group.

    Raises:
        ValueError: If ``run_secs`` is empty or contains a value that is not a duration, or a
            clock factor is not positive.
        sqlalchemy.exc.IntegrityError: If a trial has both samples and an error, or neither,
            or an unknown error kind, task or pick. Roll the transaction back then.
    """
    at = now()
    return add_rows(session, [_columns(record, at) for record in new])


def add_rows(session: Session, rows: Sequence[Row]) -> list[StoredRecord | None]:
    """Store trials that are given as columns, and add their ids; see :func:`add_records`."""
    if not rows:
        return []
    session.flush()
    trials = _insert(session, rows)
    paid: dict[int, aggregates.RecordTotals] = defaultdict(aggregates.RecordTotals)
    imported: dict[int, aggregates.RecordTotals] = defaultdict(aggregates.RecordTotals)
    for trial in trials:
        is_paid = trial["pick_id"] is not None
        (paid[trial["pick_id"]] if is_paid else imported[trial["task_id"]]).add(trial)
    aggregates.add_to_imported(session, imported)
    pick_refs = aggregates.add_to_picks(session, paid)
    failures: dict[tuple[int, str], aggregates.FailureCount] = {}
    for trial in trials:
        if trial["error_kind"] is not None and trial["pick_id"] is not None:
            key = (pick_refs[trial["pick_id"]].job_id, trial["error_kind"])
            n_before = failures[key].n_trials if key in failures else 0
            failures[key] = aggregates.FailureCount(n_before + 1, trial["id"])
    aggregates.add_failures(session, failures)
    _add_features(session, trials)
    best_ids = bests.offer(session, _offers(trials))
    _add_trial_events(session, pick_refs, trials, best_ids)
    return [
        StoredRecord(row["id"], row["latency"], row["id"] in best_ids) if row["id"] else None
        for row in rows
    ]


def traces_of_pick(session: Session, pick_id: int) -> set[str]:
    """Return the hashes of the traces that a pick has paid for."""
    return set(session.scalars(_TRACES_OF_PICK, {"of_pick": pick_id}))


def past_trials(session: Session, task_id: int, before_pick_id: int | None) -> list[PastTrial]:
    """Return the trials of a task that were measured before a pick, the oldest first.

    Args:
        session: The transaction.
        task_id: The task.
        before_pick_id: Restricts the result to records of earlier picks and of no pick, so that
            a resumed round proposes the same candidates again; None returns all records.
    """
    stmt = _MEASURED if before_pick_id is None else _MEASURED_BEFORE
    rows = session.execute(stmt, {"of_task": task_id, "before": before_pick_id})
    return [PastTrial(*row) for row in rows]


def newest_id(session: Session) -> int:
    """Return the id of the newest record, 0 if there is none."""
    return session.scalar(_NEWEST) or 0


def foreign_since(
    session: Session, record_id: int, own_jobs: Sequence[int], limit: int = 10_000
) -> list[ForeignRecord]:
    """Return records newer than one that none of these jobs paid for, the oldest first.

    Only newer records are scanned. PostgreSQL assigns ids before the commit, so a record may
    appear after one with a larger id: a caller that must miss nothing passes an id from a few
    groups earlier and skips the records that it has seen.

    Args:
        session: The transaction.
        record_id: Lower bound of the ids, exclusive.
        own_jobs: Jobs whose records are left out.
        limit: Maximum number of records.
    """
    stmt = (
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
    return [ForeignRecord(*row) for row in session.execute(stmt)]


def own_trials(session: Session, job_id: int) -> dict[int, int]:
    """Count the trials that the picks of a job paid for, by task id."""
    rows = session.execute(
        select(Pick.task_id, func.sum(Pick.n_measured))
        .where(Pick.job_id == job_id, Pick.n_measured > 0)
        .group_by(Pick.task_id)
    )
    return {task_id: n for task_id, n in rows}  # noqa: C416  rows are not pairs to mypy


def _columns(new: NewRecord, at: datetime) -> Row:
    values = new._asdict()
    values["latency"], values["created"] = None, at
    if new.run_secs is not None:
        secs = list(map(float, new.run_secs))
        if not secs or not all(map(math.isfinite, secs)) or min(secs) < 0.0:
            raise ValueError(f"run times must be finite seconds, at least one, got {secs}")
        values["run_secs"] = secs
        values["latency"] = latency_of(values["run_secs"], new.clock_factor)
    if new.conditions is not None:
        values["conditions"] = events.finite(dict(new.conditions))
    if new.error_text is not None:
        values["error_text"] = storable(new.error_text)
    if new.max_error is not None and math.isnan(new.max_error):
        values["max_error"] = math.inf
    return values


def latency_of(samples: Sequence[float], clock_factor: float | None) -> float:
    """Return the latency of samples, seconds: their median, without the drift of the clock.

    Raises:
        ValueError: If the factor is not finite and positive.
    """
    if clock_factor is not None and not 0.0 < clock_factor < math.inf:
        raise ValueError(f"a clock factor must be finite and positive, got {clock_factor}")
    return statistics.median(samples) * (1.0 if clock_factor is None else clock_factor)


def _insert(session: Session, rows: Sequence[Row]) -> list[Row]:
    """Insert the rows that are new, add its id to each of them, and return them."""
    values = [{name: row.get(name) for name in _COLUMNS} for row in rows]
    if len(rows) > 1 and session.get_bind().dialect.name == "postgresql":
        # Two writers of the same traces in different orders would deadlock.
        session.execute(_LOCK_TASKS, {"task_ids": list({row["task_id"] for row in rows})})
    inserted = session.execute(_insert_new(session), values)
    ids = {(task_id, trace_hash): record_id for task_id, trace_hash, record_id in inserted}
    new = []
    for row in rows:
        # The first of several equal rows takes the id; the others are duplicates.
        row["id"] = ids.pop((row["task_id"], row["trace_hash"]), None)
        if row["id"] is not None:
            new.append(row)
    return new


def _add_features(session: Session, trials: Sequence[Row]) -> None:
    rows = [
        {"record_id": trial["id"], "features": trial["features"]}
        for trial in trials
        if trial["features"] is not None
    ]
    if rows:
        session.execute(table(MeasureFeature).insert(), rows)


def _offers(trials: Sequence[Row]) -> list[bests.Offer]:
    """Return the fastest verified trial of each task, the first among equals.

    A disturbed trial is offered only if all of its task were.
    """
    fastest: dict[int, tuple[bool, float, Row]] = {}
    for trial in trials:
        task_id, latency = trial["task_id"], trial["latency"]
        if trial["verified"] and latency is not None:
            disturbed = bool(trial["conditions"] and trial["conditions"].get("disturbed"))
            before = fastest.get(task_id)
            if before is None or (disturbed, latency) < before[:2]:
                fastest[task_id] = (disturbed, latency, trial)
    return [
        bests.Offer(task_id, trial["id"], latency, disturbed=disturbed)
        for task_id, (disturbed, latency, trial) in fastest.items()
    ]


def _add_trial_events(
    session: Session,
    pick_refs: Mapping[int, aggregates.PickRef],
    trials: Sequence[Row],
    best_ids: Container[int],
) -> None:
    new = []
    for trial in trials:
        pick = pick_refs.get(trial["pick_id"])
        if pick is not None:
            data = {
                "pick": pick.sequence,
                "task_id": trial["task_id"],
                "record": trial["id"],
                "latency_secs": trial["latency"],
                "error_kind": trial["error_kind"],
                "best": trial["id"] in best_ids,
            }
            new.append(events.NewEvent(pick.job_id, "trial", data))
    events.add_events(session, new)


def _unless_duplicate(insert: postgresql.Insert) -> ReturningInsert[int, str, int]:
    return insert.on_conflict_do_nothing().returning(*_IDENTITY)


# Statements are built once: building takes longer than the database takes to answer.
_RECORD = table(MeasureRecord).c
_COLUMNS = tuple(column.name for column in table(MeasureRecord).columns if column.name != "id")
_IDENTITY = (_RECORD.task_id, _RECORD.trace_hash, _RECORD.id)
_insert_new = built_once(MeasureRecord, _unless_duplicate)
_LOCK_TASKS = (
    select(Task.id)
    .where(Task.id.in_(bindparam("task_ids", expanding=True)))
    .order_by(Task.id)
    .with_for_update(key_share=True)
)
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
