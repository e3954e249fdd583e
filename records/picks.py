"""Picks: which task got each round of a job, and why."""

import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from records.errors import NoSuchRow
from records.models import Job, Pick


def add_pick(
    session: Session, job_id: int, task_id: int, n_trials: int, terms: dict[str, Any]
) -> Pick:
    """Append a pick to a job, with the next sequence number; the first is 1.

    Args:
        session: The transaction.
        job_id: The job that pays.
        task_id: The task that was chosen.
        n_trials: Trials planned for the round.
        terms: Every term of the decision, as JSON; infinity and NaN, which JSON
            cannot say, become null.

    Raises:
        NoSuchRow: If there is no such job.
    """
    locked = select(Job.id).where(Job.id == job_id).with_for_update(key_share=True)
    if session.scalar(locked) is None:
        raise NoSuchRow(f"no job {job_id}")
    last = session.scalar(select(func.max(Pick.sequence)).where(Pick.job_id == job_id))
    pick = Pick(
        job_id=job_id,
        sequence=(last or 0) + 1,
        task_id=task_id,
        n_trials=n_trials,
        terms=_finite(terms),
    )
    session.add(pick)
    session.flush()
    return pick


def finish_pick(session: Session, pick_id: int, secs: float | None = None) -> Pick:
    """Mark the round of a pick as completed, after so many seconds.

    Raises:
        NoSuchRow: If there is no such pick.
    """
    pick = session.get(Pick, pick_id)
    if pick is None:
        raise NoSuchRow(f"no pick {pick_id}")
    pick.done = True
    pick.secs = secs
    session.flush()
    return pick


def fail_pick(session: Session, pick_id: int, reason: str) -> Pick:
    """Mark the round of a pick as completed without a trial, and say why.

    Raises:
        NoSuchRow: If there is no such pick.
    """
    pick = finish_pick(session, pick_id)
    pick.terms = {**pick.terms, "failed": reason}
    session.flush()
    return pick


def failed_picks(session: Session, pick_ids: Sequence[int]) -> set[int]:
    """Return which of these picks failed before any trial was made."""
    chosen = session.scalars(select(Pick).where(Pick.id.in_(pick_ids)))
    return {pick.id for pick in chosen if "failed" in pick.terms}


def count_picks(session: Session, job_id: int) -> int:
    """Count the picks of a job so far."""
    counted = select(func.count()).select_from(Pick).where(Pick.job_id == job_id)
    return session.scalar(counted) or 0


def picks_of(session: Session, job_id: int) -> list[Pick]:
    """Return the picks of a job in sequence."""
    return list(session.scalars(select(Pick).where(Pick.job_id == job_id).order_by(Pick.sequence)))


def open_pick(session: Session, job_id: int) -> Pick | None:
    """Return the last pick of a job whose round was not completed, to be resumed."""
    unfinished = select(Pick).where(Pick.job_id == job_id, Pick.done.is_(False))
    return session.scalars(unfinished.order_by(Pick.sequence.desc()).limit(1)).first()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
