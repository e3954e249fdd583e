"""Best records: the fastest verified record of each task."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Select, and_, case, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningInsert

from records.errors import NoSuchRow, NoValidRecord
from records.models import BestRecord, MeasureRecord, Task, Workload
from records.upsert import built_once, insert, table


@dataclass(frozen=True)
class BestOf:
    """What a build takes of a best record; ``latency`` in seconds."""

    record_id: int
    trace: str
    trace_hash: str
    latency: float


class Offer(NamedTuple):
    """A verified record that may be the best of its task; ``latency`` in seconds."""

    task_id: int
    record_id: int
    latency: float
    confirmed: bool = False


def offer(session: Session, offers: Sequence[Offer]) -> set[int]:
    """Make verified records the best of their tasks if they are strictly faster; ties stay.

    A best record that was confirmed is compared by the latency it was first measured with:
    a final times more strictly, and what it says would lose to any new record.

    Args:
        session: The transaction.
        offers: At most one for each task.

    Returns:
        The ids of the records that became the best.
    """
    if not offers:
        return set()
    return set(session.scalars(_offered(session), [best._asdict() for best in sorted(offers)]))


def best_record(session: Session, workload_hash: str, target_id: int, engine: str) -> MeasureRecord:
    """Return the best record of a workload on this very target.

    Raises:
        NoValidRecord: If the task is unknown, or none of its trials was verified.
    """
    record = session.scalars(best_statement(workload_hash, target_id, engine)).one_or_none()
    if record is None:
        raise NoValidRecord(
            f"no verified record of {engine} workload {workload_hash} on target {target_id}"
        )
    return record


def best_statement(workload_hash: str, target_id: int, engine: str) -> Select[MeasureRecord]:
    """Return the query of ``best_record``: four look-ups by unique keys, no scan."""
    return (
        select(MeasureRecord)
        .join(BestRecord, BestRecord.record_id == MeasureRecord.id)
        .join(Task, Task.id == BestRecord.task_id)
        .join(Workload, Workload.id == Task.workload_id)
        .where(
            Workload.hash == workload_hash,
            Workload.engine == engine,
            Task.target_id == target_id,
        )
    )


def best_latencies(session: Session, task_ids: Sequence[int]) -> dict[int, float]:
    """Return the best latency, seconds, of each task that has a best record."""
    wanted = select(BestRecord.task_id, BestRecord.latency)
    rows = session.execute(wanted.where(BestRecord.task_id.in_(task_ids)))
    return {task_id: latency for task_id, latency in rows}  # noqa: C416  rows are not pairs to mypy


def best_records(session: Session, task_ids: Sequence[int]) -> dict[int, BestOf]:
    """Return the best record of each task that has one, by task."""
    wanted = (
        select(
            BestRecord.task_id,
            BestRecord.record_id,
            MeasureRecord.trace,
            MeasureRecord.trace_hash,
            BestRecord.latency,
        )
        .join(MeasureRecord, MeasureRecord.id == BestRecord.record_id)
        .where(BestRecord.task_id.in_(task_ids))
    )
    return {row.task_id: BestOf(*row[1:]) for row in session.execute(wanted)}


def top_records(session: Session, task_id: int, k: int) -> list[MeasureRecord]:
    """Return the ``k`` fastest verified records of a task; ties go to the oldest."""
    return list(
        session.scalars(
            select(MeasureRecord)
            .where(MeasureRecord.task_id == task_id, MeasureRecord.verified)
            .order_by(MeasureRecord.latency, MeasureRecord.id)
            .limit(k)
        )
    )


def confirm(session: Session, record_id: int, samples: Sequence[float]) -> MeasureRecord:
    """Store the samples, seconds, of a record's final interleaved re-measurement.

    Raises:
        NoSuchRow: If there is no such record.
        ValueError: If there is no sample.
    """
    record = session.get(MeasureRecord, record_id)
    if record is None:
        raise NoSuchRow(f"no measure record {record_id}")
    if not samples:
        raise ValueError(f"record {record_id} was confirmed without samples")
    record.confirmed_secs = [float(sample) for sample in samples]
    session.flush()
    return record


def champion(session: Session, task_id: int) -> MeasureRecord | None:
    """Return the confirmed record with the lowest median, ties to the oldest; None if none is."""
    confirmed = session.scalars(
        select(MeasureRecord)
        .where(
            MeasureRecord.task_id == task_id,
            MeasureRecord.verified,
            MeasureRecord.confirmed_secs.is_not(None),
        )
        .order_by(MeasureRecord.id)
    ).all()
    return min(confirmed, key=lambda record: (_confirmed(record), record.id), default=None)


def choose_confirmed(session: Session, task_id: int) -> MeasureRecord:
    """Make the confirmed record with the lowest median the best; ties go to the oldest.

    Raises:
        NoValidRecord: If no verified record of the task was confirmed.
    """
    winner = champion(session, task_id)
    if winner is None:
        raise NoValidRecord(f"no verified record of task {task_id} was confirmed")
    latency = _confirmed(winner)
    row = insert(session, BestRecord).values(
        task_id=task_id, record_id=winner.id, latency=latency, confirmed=True
    )
    key = [BestRecord.task_id]
    session.execute(row.on_conflict_do_update(index_elements=key, set_=_replaced(row)))
    return winner


def _confirmed(record: MeasureRecord) -> float:
    return statistics.median(record.confirmed_secs or [])


def _replaced(row: postgresql.Insert) -> dict[str, object]:
    return {name: row.excluded[name] for name in ("record_id", "latency", "confirmed")}


def _offer(row: postgresql.Insert) -> ReturningInsert[int]:
    """Replace what is slower: one statement, so that of two writers at once the faster stays."""
    first = (
        select(MeasureRecord.latency)
        .where(MeasureRecord.id == BestRecord.record_id)
        .scalar_subquery()
    )
    as_measured = and_(BestRecord.confirmed, ~row.excluded.confirmed)
    return row.on_conflict_do_update(
        index_elements=[BestRecord.task_id],
        set_=_replaced(row),
        where=row.excluded.latency < case((as_measured, first), else_=BestRecord.latency),
    ).returning(table(BestRecord).c.record_id)


_offered = built_once(BestRecord, _offer)
