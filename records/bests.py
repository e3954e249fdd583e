"""Best records: the fastest verified record of each task."""

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningInsert

from records.errors import NoSuchRow, NoValidRecord
from records.models import BestRecord, MeasureRecord
from records.storage.upsert import built_once, insert, table

# Characters at the beginning of a trace, in which it names its variant.
HEAD_CHARS = 64


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
    disturbed: bool = False


def offer(session: Session, offers: Sequence[Offer]) -> set[int]:
    """Make verified records the best of their tasks if they are strictly faster.

    A record whose samples stayed disturbed replaces no other: a final has to time it first.

    Args:
        offers: At most one offer for each task.

    Returns:
        The ids of the records that became the best.
    """
    if not offers:
        return set()
    best_ids: set[int] = set()
    for disturbed, statement in ((False, _upsert_best), (True, _insert_best)):
        rows = [
            {name: getattr(one, name) for name in _COLUMNS}
            for one in sorted(offers)
            if one.disturbed is disturbed
        ]
        if rows:
            best_ids.update(session.scalars(statement(session), rows))
    return best_ids


def best_latencies(session: Session, task_ids: Sequence[int]) -> dict[int, float]:
    """Return the best latency, seconds, of each task that has a best record."""
    stmt = select(BestRecord.task_id, BestRecord.latency)
    rows = session.execute(stmt.where(BestRecord.task_id.in_(task_ids)))
    return {task_id: latency for task_id, latency in rows}  # noqa: C416  rows are not pairs to mypy


def heads(session: Session, task_ids: Sequence[int]) -> dict[int, tuple[str, str | None]]:
    """Return the beginning of the trace of each task's best record, and its origin, by task."""
    stmt = (
        select(
            BestRecord.task_id,
            func.substr(MeasureRecord.trace, 1, HEAD_CHARS),
            MeasureRecord.origin,
        )
        .join(MeasureRecord, MeasureRecord.id == BestRecord.record_id)
        .where(BestRecord.task_id.in_(task_ids))
    )
    return {task_id: (head, origin) for task_id, head, origin in session.execute(stmt)}


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


def confirm(
    session: Session, record_id: int, samples: Sequence[float], clock_factor: float | None = None
) -> MeasureRecord:
    """Store the samples, seconds, of a record's final interleaved re-measurement.

    Args:
        samples: All samples of its turns.
        clock_factor: Factor that divides the drift of the device's clock out of the samples.

    Raises:
        NoSuchRow: If the record does not exist.
        ValueError: If there are no samples, or one is not finite.
    """
    record = session.get(MeasureRecord, record_id)
    if record is None:
        raise NoSuchRow(f"no measure record {record_id}")
    if not samples or not all(map(math.isfinite, samples)):
        raise ValueError(f"record {record_id} cannot be confirmed by the samples {samples}")
    record.confirmed_secs = [float(sample) for sample in samples]
    record.confirmed_factor = clock_factor
    session.flush()
    return record


def confirmed_records(session: Session, task_id: int) -> list[MeasureRecord]:
    """Return the verified records of a task that were in a final, the oldest first."""
    return list(
        session.scalars(
            select(MeasureRecord)
            .where(
                MeasureRecord.task_id == task_id,
                MeasureRecord.verified,
                MeasureRecord.confirmed_secs.is_not(None),
            )
            .order_by(MeasureRecord.id)
        )
    )


def choose_confirmed(
    session: Session, task_id: int, record_ids: Collection[int] | None = None
) -> MeasureRecord:
    """Make the confirmed record with the lowest latency the best; ties go to the oldest.

    Args:
        record_ids: Records to choose from; None for all that were in a final.

    Raises:
        NoValidRecord: If none of the records is verified and confirmed.
    """
    confirmed = [
        record
        for record in confirmed_records(session, task_id)
        if record_ids is None or record.id in record_ids
    ]
    if not confirmed:
        raise NoValidRecord(f"no verified record of task {task_id} was confirmed")
    winner = min(confirmed, key=latency_of)
    latency = latency_of(winner)
    stmt = insert(session, BestRecord).values(
        task_id=task_id, record_id=winner.id, latency=latency, confirmed=True
    )
    key = [BestRecord.task_id]
    session.execute(stmt.on_conflict_do_update(index_elements=key, set_=_new_values(stmt)))
    return winner


def latency_of(record: MeasureRecord) -> float:
    """Return the latency of a record, seconds: that of its final if it was in one."""
    if record.confirmed_secs:
        return statistics.median(record.confirmed_secs) * (record.confirmed_factor or 1.0)
    return math.inf if record.latency is None else record.latency


def _new_values(stmt: postgresql.Insert) -> dict[str, object]:
    return {name: stmt.excluded[name] for name in ("record_id", "latency", "confirmed")}


def _replace_slower(stmt: postgresql.Insert) -> ReturningInsert[int]:
    """Replace slower records in one statement, so that the faster of two writers wins."""
    return stmt.on_conflict_do_update(
        index_elements=[BestRecord.task_id],
        set_=_new_values(stmt),
        where=stmt.excluded.latency < BestRecord.latency,
    ).returning(table(BestRecord).c.record_id)


def _replace_none(stmt: postgresql.Insert) -> ReturningInsert[int]:
    return stmt.on_conflict_do_nothing(index_elements=[BestRecord.task_id]).returning(
        table(BestRecord).c.record_id
    )


_COLUMNS = Offer._fields[:-1]
_upsert_best = built_once(BestRecord, _replace_slower)
_insert_best = built_once(BestRecord, _replace_none)
