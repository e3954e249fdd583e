"""Cost models and their training examples."""

from typing import NamedTuple

from sqlalchemy import BindParameter, ColumnElement, bindparam, func, select
from sqlalchemy.orm import Session

from records.models import CostModel, MeasureFeature, MeasureRecord, Task, now
from records.storage.upsert import insert, table


class TrainingRow(NamedTuple):
    """One training example; ``latency`` in seconds, None if the trial failed."""

    record_id: int
    task_id: int
    features: bytes
    latency: float | None


def training_set(
    session: Session, target_id: int, limit: int, before_record_id: int | None = None
) -> list[TrainingRow]:
    """Return the latest records of a target that have features, in ascending order of id.

    Args:
        limit: Maximum number of records.
        before_record_id: Upper bound of the record ids, exclusive; None for no bound.
    """
    stmt = (
        select(
            MeasureRecord.id, MeasureRecord.task_id, MeasureFeature.features, MeasureRecord.latency
        )
        .join(MeasureFeature, MeasureFeature.record_id == MeasureRecord.id)
        .join(Task, Task.id == MeasureRecord.task_id)
        .where(Task.target_id == target_id)
        .order_by(MeasureRecord.id.desc())
        .limit(limit)
    )
    if before_record_id is not None:
        stmt = stmt.where(MeasureRecord.id < before_record_id)
    return list(map(TrainingRow._make, session.execute(stmt)))[::-1]


def training_set_between(
    session: Session, target_id: int, after_record_id: int, before_record_id: int
) -> list[TrainingRow]:
    """Return, like :func:`training_set`, the examples between two records, both exclusive.

    The query scans only the records between the two, not all records of the target.
    """
    bounds = {"after": after_record_id, "before": before_record_id, "of_target": target_id}
    return list(map(TrainingRow._make, session.execute(_TRAINING_BETWEEN, bounds).all()))


def count_examples(session: Session, target_id: int, before_record_id: int | None = None) -> int:
    """Count the records of a target that have features, optionally only those before a record."""
    stmt = (
        select(func.count())
        .select_from(MeasureFeature)
        .join(MeasureRecord, MeasureFeature.record_id == MeasureRecord.id)
        .join(Task, Task.id == MeasureRecord.task_id)
        .where(Task.target_id == target_id)
    )
    if before_record_id is not None:
        stmt = stmt.where(MeasureRecord.id < before_record_id)
    return session.scalar(stmt) or 0


def count_examples_between(
    session: Session, target_id: int, after_record_id: int, before_record_id: int
) -> int:
    """Count, like :func:`count_examples`, the examples between two records, both exclusive.

    The query scans only the records between the two, not all records of the target.
    """
    bounds = {"after": after_record_id, "before": before_record_id, "of_target": target_id}
    return session.scalar(_COUNT_BETWEEN, bounds) or 0


def save_cost_model(
    session: Session, target_id: int, kind: str, n_records: int, blob: bytes
) -> None:
    """Store the model of a target and kind, replacing the previous one."""
    values = {"n_records": n_records, "blob": blob, "created": now()}
    row = insert(session, CostModel).values(target_id=target_id, kind=kind, **values)
    key = [CostModel.target_id, CostModel.kind]
    session.execute(row.on_conflict_do_update(index_elements=key, set_=values))


def load_cost_model(session: Session, target_id: int, kind: str) -> CostModel | None:
    """Return the stored model of a target and kind, or None."""
    return session.get(CostModel, (target_id, kind), populate_existing=True)


def _between() -> tuple[ColumnElement[bool], ...]:
    # A join would begin with all tasks of the target; a bound on either id limits one table only.
    of_target = select(_TASK.target_id).where(_TASK.id == _RECORD.task_id).scalar_subquery()
    after: BindParameter[int] = bindparam("after")
    before: BindParameter[int] = bindparam("before")
    return (
        _RECORD.id > after,
        _RECORD.id < before,
        _FEATURE.record_id > after,
        _FEATURE.record_id < before,
        of_target == bindparam("of_target"),
    )


# Statements are built once, and on tables: building, and the ORM's work, take longer than the
# database takes to answer.
_RECORD, _FEATURE = table(MeasureRecord).c, table(MeasureFeature).c
_TASK = table(Task).c
_EXAMPLES = table(MeasureFeature).join(table(MeasureRecord), _FEATURE.record_id == _RECORD.id)
_COUNT_BETWEEN = select(func.count()).select_from(_EXAMPLES).where(*_between())
_TRAINING_BETWEEN = (
    select(_RECORD.id, _RECORD.task_id, _FEATURE.features, _RECORD.latency)
    .select_from(_EXAMPLES)
    .where(*_between())
    .order_by(_RECORD.id)
)
