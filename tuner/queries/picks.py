"""Picks of a job, as lists and tables show them."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from records import jobs, tasks
from records.models import Pick
from records.tasks import WeightedTask
from tuner.queries.explain import explain
from tuner.schemas import PickView

# Columns instead of objects, which take longer to build than to read.
_COLUMNS = (
    Pick.sequence,
    Pick.task_id,
    Pick.n_trials,
    Pick.terms,
    Pick.done,
    Pick.n_measured,
    Pick.n_failed,
    Pick.secs,
    Pick.total_secs,
    Pick.created,
)


def read_picks(
    session: Session, job_id: int, *, before: int | None = None, limit: int = 50
) -> list[PickView]:
    """Return at most ``limit`` picks of a job, the newest first; only those before a number.

    Raises:
        NoSuchRow: If the job does not exist.
    """
    weighted = tasks.tasks_of_job(session, jobs.get_job(session, job_id))
    stmt = select(*_COLUMNS).where(Pick.job_id == job_id).order_by(Pick.sequence.desc())
    if before is not None:
        stmt = stmt.where(Pick.sequence < before)
    return _views(session, stmt.limit(limit), weighted)


def last_pick(session: Session, job_id: int, weighted: Sequence[WeightedTask]) -> PickView | None:
    """Return the newest pick of a job that has these tasks."""
    stmt = select(*_COLUMNS).where(Pick.job_id == job_id).order_by(Pick.sequence.desc()).limit(1)
    return next(iter(_views(session, stmt, weighted)), None)


def picks_by_task(
    session: Session, pick_ids: Sequence[int], weighted: Sequence[WeightedTask]
) -> dict[int, PickView]:
    """Return picks, at most one a task, by the number of their task."""
    stmt = select(*_COLUMNS).where(Pick.id.in_(pick_ids))
    return {pick.task_id: pick for pick in _views(session, stmt, weighted)}


def _views(session: Session, stmt: Select[Any], weighted: Sequence[WeightedTask]) -> list[PickView]:
    rows = {task.task_id: index for index, task in enumerate(weighted)}
    return [_view(pick, weighted, rows) for pick in session.execute(stmt)]


def _view(pick: Any, weighted: Sequence[WeightedTask], rows: Mapping[int, int]) -> PickView:
    index = rows.get(pick.task_id)
    return PickView(
        sequence=pick.sequence,
        task=index,
        task_id=pick.task_id,
        task_name="" if index is None else weighted[index].name,
        n_trials=pick.n_trials,
        reason=str(pick.terms.get("reason", "")),
        why=explain(pick.terms),
        terms=pick.terms,
        done=pick.done,
        n_measured=pick.n_measured,
        n_failed=pick.n_failed,
        secs=pick.secs,
        total_latency_secs=pick.total_secs,
        created=pick.created,
    )
