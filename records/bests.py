"""Best records: the fastest verified record of each task."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import and_, case, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningInsert

from records.errors import NoSuchRow, NoValidRecord
from records.models import BestRecord, MeasureRecord
from records.upsert import built_once, insert, table


@dataclass(frozen=True)
class BestTrace:
    """The part of a best record that a build needs; ``latency`` in seconds."""

    record_id: int
    trace: str
    trace_hash: str
    latency: float


class Offer(NamedTuple):
    """A verified record that may become the best of its task; ``latency`` in seconds."""

    task_id: int
    record_id: int
    latency: float
    confirmed: bool = False


def offer(session: Session, offers: Sequence[Offer]) -> set[int]:
    """Make verified records the best of their tasks if they are strictly faster.

    A confirmed best record is compared by its first latency: the final measures under stricter
    conditions, so its longer latency would lose to any new record.

    Args:
        session: The transaction.
        offers: At most one offer for each task.

    Returns:
        The ids of the records that became the best.
    """
    if not offers:
        return set()
    rows = [offered._asdict() for offered in sorted(offers)]
    return set(session.scalars(_upsert_best(session), rows))


def best_latencies(session: Session, task_ids: Sequence[int]) -> dict[int, float]:
    """Return the best latency, seconds, of each task that has a best record."""
    stmt = select(BestRecord.task_id, BestRecord.latency)
    rows = session.execute(stmt.where(BestRecord.task_id.in_(task_ids)))
    return {task_id: latency for task_id, latency in rows}  # noqa: C416  rows are not pairs to mypy


def best_records(session: Session, task_ids: Sequence[int]) -> dict[int, BestTrace]:
    """Return the best record of each task that has one, by task."""
    stmt = (
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
    return {row.task_id: BestTrace(*row[1:]) for row in session.execute(stmt)}


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
        NoSuchRow: If the record does not exist.
        ValueError: If ``samples`` is empty.
    """
    record = session.get(MeasureRecord, record_id)
    if record is None:
        raise NoSuchRow(f"no measure record {record_id}")
    if not samples:
        raise ValueError(f"record {record_id} cannot be confirmed without samples")
    record.confirmed_secs = [float(sample) for sample in samples]
    session.flush()
    return record


def champion(session: Session, task_id: int) -> MeasureRecord | None:
    """Return the confirmed record with the lowest median, or None; ties go to the oldest."""
    confirmed = session.scalars(
        select(MeasureRecord)
        .where(
            MeasureRecord.task_id == task_id,
            MeasureRecord.verified,
            MeasureRecord.confirmed_secs.is_not(None),
        )
        .order_by(MeasureRecord.id)
    ).all()
    return min(confirmed, key=lambda record: (_confirmed_latency(record), record.id), default=None)


def choose_confirmed(session: Session, task_id: int) -> MeasureRecord:
    """Make the confirmed record with the lowest median the best; ties go to the oldest.

    Raises:
        NoValidRecord: If no verified record of the task was confirmed.
    """
    winner = champion(session, task_id)
    if winner is None:
        raise NoValidRecord(f"no verified record of task {task_id} was confirmed")
    latency = _confirmed_latency(winner)
    stmt = insert(session, BestRecord).values(
        task_id=task_id, record_id=winner.id, latency=latency, confirmed=True
    )
    key = [BestRecord.task_id]
    session.execute(stmt.on_conflict_do_update(index_elements=key, set_=_new_values(stmt)))
    return winner


def _confirmed_latency(record: MeasureRecord) -> float:
    return statistics.median(record.confirmed_secs or [])


def _new_values(stmt: postgresql.Insert) -> dict[str, object]:
    return {name: stmt.excluded[name] for name in ("record_id", "latency", "confirmed")}


def _replace_slower(stmt: postgresql.Insert) -> ReturningInsert[int]:
    """Replace slower records in one statement, so that the faster of two writers wins."""
    first_latency = (
        select(MeasureRecord.latency)
        .where(MeasureRecord.id == BestRecord.record_id)
        .scalar_subquery()
    )
    by_first_latency = and_(BestRecord.confirmed, ~stmt.excluded.confirmed)
    current = case((by_first_latency, first_latency), else_=BestRecord.latency)
    return stmt.on_conflict_do_update(
        index_elements=[BestRecord.task_id],
        set_=_new_values(stmt),
        where=stmt.excluded.latency < current,
    ).returning(table(BestRecord).c.record_id)


_upsert_best = built_once(BestRecord, _replace_slower)
