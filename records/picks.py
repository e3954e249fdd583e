"""Picks: which task got each round of a job, and why."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Row, Select, bindparam, func, select, true, update
from sqlalchemy.orm import Session

from records import events, jobs
from records.errors import NoSuchRow
from records.models import Job, Pick
from records.text import storable
from records.upsert import table


class NewPick(NamedTuple):
    """A decision that is to be stored.

    Attributes:
        job_id: The job that pays.
        task_id: The task that was chosen.
        n_trials: Trials planned for the round.
        terms: Every term of the decision, as JSON; infinity and NaN, which JSON
            cannot say, become null.
    """

    job_id: int
    task_id: int
    n_trials: int
    terms: dict[str, Any]


class Ending(NamedTuple):
    """How the round of a pick ended, and what its job had come to by then.

    Attributes:
        pick_id: The pick.
        job_id: The job that paid.
        secs: How long the round took; None if nobody said.
        total_secs: Latency of the network; infinity is stored as null.
        spent_trials: Trials that count against the budget of the job.
        job_trials: Trials that the job has paid for.
        spent_secs: What the job spent of its time since that was stored last, seconds.
        failed: Why no trial was made; None if one was, or none was left to make.
    """

    pick_id: int
    job_id: int
    secs: float | None
    total_secs: float
    spent_trials: int
    job_trials: int
    spent_secs: float = 0.0
    failed: str | None = None


def add_pick(
    session: Session, job_id: int, task_id: int, n_trials: int, terms: dict[str, Any]
) -> Pick:
    """Append a pick to a job: a group of one, see :func:`add_picks`."""
    return add_picks(session, [NewPick(job_id, task_id, n_trials, terms)])[0]


def add_picks(session: Session, new: Sequence[NewPick]) -> list[Pick]:
    """Append picks to their jobs, with the next sequence numbers; the first of a job is 1.

    Raises:
        NoSuchRow: If there is no such job.
    """
    last = _last_sequences(session, {each.job_id for each in new})
    made = []
    for each in new:
        last[each.job_id] += 1
        values = each._asdict() | {"terms": events.finite(each.terms)}
        made.append(Pick(sequence=last[each.job_id], **values))
    session.add_all(made)
    session.flush()
    events.add_events(session, [_as_picked(pick) for pick in made])
    return made


def _last_sequences(session: Session, job_ids: Collection[int]) -> dict[int, int]:
    rows = session.execute(_LAST_SEQUENCES, {"job_ids": list(job_ids)})
    found = {job_id: last or 0 for job_id, last in rows}
    for job_id in job_ids:
        if job_id not in found:
            raise NoSuchRow(f"no job {job_id}")
    return found


def _as_picked(pick: Pick) -> events.NewEvent:
    told = {
        "pick": pick.sequence,
        "task_id": pick.task_id,
        "n_trials": pick.n_trials,
        "reason": pick.terms.get("reason"),
    }
    return events.NewEvent(pick.job_id, "pick", told)


def finish_pick(session: Session, pick_id: int, secs: float | None = None) -> Pick:
    """Mark the round of a pick as completed, after so many seconds.

    See :func:`end_picks` for what it came to.

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


def end_picks(session: Session, endings: Sequence[Ending]) -> None:
    """Complete rounds with what they came to, and tell those who watch their jobs.

    Raises:
        NoSuchRow: If there is no such pick.
    """
    for each in endings:
        if each.failed is not None:
            fail_pick(session, each.pick_id, each.failed)
    # In the order of their ids, so that two writers never wait for each other.
    session.execute(
        _END, [_as_row(each) for each in sorted(endings, key=lambda each: each.pick_id)]
    )
    wanted = {"pick_ids": [each.pick_id for each in endings]}
    found = {row.id: row for row in session.execute(_ENDED, wanted)}
    for each in endings:
        if each.pick_id not in found:
            raise NoSuchRow(f"no pick {each.pick_id}")
    events.add_events(session, [_as_ended(each, found[each.pick_id]) for each in endings])
    jobs.add_all_spent_secs(session, [(each.job_id, each.spent_secs) for each in endings])


def _as_row(ending: Ending) -> dict[str, Any]:
    return {
        "of_pick": ending.pick_id,
        "took": ending.secs,
        "total": events.finite(ending.total_secs),
        "trials": ending.job_trials,
    }


def _as_ended(ending: Ending, pick: Row[*tuple[Any, ...]]) -> events.NewEvent:
    told = {
        "pick": pick.sequence,
        "task_id": pick.task_id,
        "n_measured": pick.n_measured,
        "n_failed": pick.n_failed,
        "total_secs": ending.total_secs,
        "spent_trials": ending.spent_trials,
    }
    return events.NewEvent(ending.job_id, "round", told)


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


def _last_sequences_statement() -> Select[Any]:
    last = select(func.max(Pick.sequence)).where(Pick.job_id == Job.id).scalar_subquery()
    wanted = select(Job.id, last).where(Job.id.in_(bindparam("job_ids", expanding=True)))
    return wanted.order_by(Job.id).with_for_update(key_share=True, of=Job)


# Made once: to make them takes longer than the database takes to answer.
_LAST_SEQUENCES = _last_sequences_statement()
_PICK = table(Pick)
_END = (
    update(_PICK)
    .where(_PICK.c.id == bindparam("of_pick"))
    .values(
        done=true(),
        secs=bindparam("took"),
        total_secs=bindparam("total"),
        job_trials=bindparam("trials"),
    )
)
_ENDED = select(
    _PICK.c.id, _PICK.c.sequence, _PICK.c.task_id, _PICK.c.n_measured, _PICK.c.n_failed
).where(_PICK.c.id.in_(bindparam("pick_ids", expanding=True)))
