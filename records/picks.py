"""Picks: which task got each round of a job, and why."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, bindparam, func, select, update
from sqlalchemy.orm import Session

from records import events
from records.errors import NoSuchRow
from records.models import Job, Pick
from records.statements import table
from records.texts import storable


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
    found = session.execute(_LAST_SEQUENCE, {"of_job": job_id}).first()
    if found is None:
        raise NoSuchRow(f"no job {job_id}")
    pick = Pick(
        job_id=job_id,
        sequence=(found.sequence or 0) + 1,
        task_id=task_id,
        n_trials=n_trials,
        terms=events.finite(terms),
    )
    session.add(pick)
    session.flush()
    told = {
        "pick": pick.sequence,
        "task_id": task_id,
        "n_trials": n_trials,
        "reason": terms.get("reason"),
    }
    events.add_event(session, job_id, "pick", told)
    return pick


def finish_pick(session: Session, pick_id: int, secs: float | None = None) -> Pick:
    """Mark the round of a pick as completed, after so many seconds.

    See :func:`set_outcome` for what it came to.

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


def set_outcome(
    session: Session, pick_id: int, *, total_secs: float, spent_trials: int, job_trials: int
) -> None:
    """Note what a job had come to after the round of a pick, and tell those who watch it.

    Args:
        session: The transaction.
        pick_id: The pick.
        total_secs: Latency of the network; infinity is stored as null.
        spent_trials: Trials that count against the budget of the job.
        job_trials: Trials that the job has paid for.

    Raises:
        NoSuchRow: If there is no such pick.
    """
    values = {"total": events.finite(total_secs), "trials": job_trials}
    pick = session.execute(_SET_OUTCOME, {"of_pick": pick_id, **values}).first()
    if pick is None:
        raise NoSuchRow(f"no pick {pick_id}")
    told = {
        "pick": pick.sequence,
        "task_id": pick.task_id,
        "n_measured": pick.n_measured,
        "n_failed": pick.n_failed,
        "total_secs": total_secs,
        "spent_trials": spent_trials,
    }
    events.add_event(session, pick.job_id, "round", told)


def fail_pick(session: Session, pick_id: int, reason: str) -> Pick:
    """Mark the round of a pick as completed without a trial, and say why.

    Raises:
        NoSuchRow: If there is no such pick.
    """
    pick = finish_pick(session, pick_id)
    pick.terms = {**pick.terms, "failed": storable(reason)}
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


def open_pick(session: Session, job_id: int) -> Pick | None:
    """Return the last pick of a job whose round was not completed, to be resumed."""
    unfinished = select(Pick).where(Pick.job_id == job_id, Pick.done.is_(False))
    return session.scalars(unfinished.order_by(Pick.sequence.desc()).limit(1)).first()


def open_picks(session: Session, job_id: int) -> list[Pick]:
    """Return the picks of a job whose rounds were not completed, in their order."""
    return list(session.scalars(open_statement(job_id)))


def open_statement(job_id: int) -> Select[Pick]:
    """Return the query of ``open_picks``: an index has the open ones alone."""
    return select(Pick).where(Pick.job_id == job_id, ~Pick.done).order_by(Pick.sequence)


def _last_sequence() -> Select[Any]:
    last = select(func.max(Pick.sequence)).where(Pick.job_id == Job.id).scalar_subquery()
    wanted = select(Job.id, last.label("sequence")).where(Job.id == bindparam("of_job"))
    return wanted.with_for_update(key_share=True, of=Job)


# Made once: to make them takes longer than the database takes to answer.
_LAST_SEQUENCE = _last_sequence()
_PICK = table(Pick)
_SET_OUTCOME = (
    update(_PICK)
    .where(_PICK.c.id == bindparam("of_pick"))
    .values(total_secs=bindparam("total"), job_trials=bindparam("trials"))
    .returning(
        _PICK.c.job_id, _PICK.c.sequence, _PICK.c.task_id, _PICK.c.n_measured, _PICK.c.n_failed
    )
)
