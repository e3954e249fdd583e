"""Picks: the stored scheduling decisions of a job, one for each round."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Row, Select, bindparam, func, select, true, update
from sqlalchemy.orm import Session

from records import jobs
from records.errors import NoSuchRow
from records.models import Job, Pick
from records.storage.text import storable
from records.storage.upsert import table
from records.tuning import events


class NewPick(NamedTuple):
    """A scheduling decision to store.

    Attributes:
        job_id: Job that pays.
        task_id: Task that was chosen.
        n_trials: Trials planned for the round.
        terms: Every term of the decision, as JSON; infinity and NaN become null.
    """

    job_id: int
    task_id: int
    n_trials: int
    terms: dict[str, Any]


class RoundEnd(NamedTuple):
    """The end of a pick's round, with the progress of its job at that time.

    Attributes:
        job_id: Job that paid.
        secs: Duration of the round, seconds; None if unknown.
        total_secs: Latency of the network, seconds; infinity is stored as null.
        spent_trials: Trials that count against the budget of the job.
        job_trials: Trials that the job has paid for.
        spent_secs: Time that the job spent since it was last stored, seconds.
        failed: Reason why no trial was made; None if one was made or none was left to make.
    """

    pick_id: int
    job_id: int
    secs: float | None
    total_secs: float
    spent_trials: int
    job_trials: int
    spent_secs: float = 0.0
    failed: str | None = None


def add_picks(session: Session, new: Sequence[NewPick]) -> list[Pick]:
    """Append picks to their jobs, with the next sequence numbers; the first of a job is 1.

    Raises:
        NoSuchRow: If a job does not exist.
    """
    job_ids = {decision.job_id for decision in new}
    rows = session.execute(_LAST_SEQUENCES, {"job_ids": list(job_ids)})
    last = {job_id: last or 0 for job_id, last in rows}
    for job_id in job_ids:
        if job_id not in last:
            raise NoSuchRow(f"no job {job_id}")
    picks = []
    for decision in new:
        last[decision.job_id] += 1
        # The round starts at once.
        values = decision._asdict() | {"terms": events.finite(decision.terms), "attempts": 1}
        picks.append(Pick(sequence=last[decision.job_id], **values))
    session.add_all(picks)
    session.flush()
    events.add_events(session, [_pick_event(pick) for pick in picks])
    return picks


def _pick_event(pick: Pick) -> events.NewEvent:
    data = {
        "pick": pick.sequence,
        "task_id": pick.task_id,
        "n_trials": pick.n_trials,
        "reason": pick.terms.get("reason"),
    }
    return events.NewEvent(pick.job_id, "pick", data)


def finish_pick(session: Session, pick_id: int, secs: float | None = None) -> Pick:
    """Mark the round of a pick as completed after ``secs`` seconds.

    See :func:`end_picks`, which also stores the progress of the job.

    Raises:
        NoSuchRow: If the pick does not exist.
    """
    pick = session.get(Pick, pick_id)
    if pick is None:
        raise NoSuchRow(f"no pick {pick_id}")
    pick.done = True
    pick.secs = secs
    session.flush()
    return pick


def end_picks(session: Session, ends: Sequence[RoundEnd]) -> None:
    """Complete rounds, and append an event for each to its job.

    Raises:
        NoSuchRow: If a pick does not exist.
    """
    for end in ends:
        if end.failed is not None:
            fail_pick(session, end.pick_id, end.failed)
    # Picks are updated in the order of their ids, so that two writers never deadlock.
    session.execute(
        _END,
        [
            {
                "of_pick": end.pick_id,
                "took": end.secs,
                "total": events.finite(end.total_secs),
                "trials": end.job_trials,
            }
            for end in sorted(ends, key=lambda end: end.pick_id)
        ],
    )
    rows = session.execute(_ENDED, {"pick_ids": [end.pick_id for end in ends]})
    picks = {row.id: row for row in rows}
    for end in ends:
        if end.pick_id not in picks:
            raise NoSuchRow(f"no pick {end.pick_id}")
    events.add_events(session, [_round_event(end, picks[end.pick_id]) for end in ends])
    jobs.add_all_spent_secs(session, [(end.job_id, end.spent_secs) for end in ends])


def _round_event(end: RoundEnd, pick: Row[*tuple[Any, ...]]) -> events.NewEvent:
    data = {
        "pick": pick.sequence,
        "task_id": pick.task_id,
        "n_measured": pick.n_measured,
        "n_failed": pick.n_failed,
        "total_secs": end.total_secs,
        "spent_trials": end.spent_trials,
    }
    return events.NewEvent(end.job_id, "round", data)


def fail_pick(session: Session, pick_id: int, reason: str) -> Pick:
    """Mark the round of a pick as completed without a trial, with the reason.

    Raises:
        NoSuchRow: If the pick does not exist.
    """
    pick = finish_pick(session, pick_id)
    pick.terms = {**pick.terms, "failed": storable(reason)}
    session.flush()
    return pick


def failed_picks(session: Session, pick_ids: Sequence[int]) -> set[int]:
    """Return the ids of those picks that failed before any trial was made."""
    picks = session.scalars(select(Pick).where(Pick.id.in_(pick_ids)))
    return {pick.id for pick in picks if "failed" in pick.terms}


def count_picks(session: Session, job_id: int) -> int:
    """Count the picks of a job."""
    stmt = select(func.count()).select_from(Pick).where(Pick.job_id == job_id)
    return session.scalar(stmt) or 0


def open_picks(session: Session, job_id: int) -> list[Pick]:
    """Return the picks of a job with an open round, by sequence number."""
    return list(session.scalars(open_statement(job_id)))


def open_statement(job_id: int) -> Select[Pick]:
    """Return the query of ``open_picks``, which an index on open picks answers."""
    return select(Pick).where(Pick.job_id == job_id, ~Pick.done).order_by(Pick.sequence)


def _last_sequences_statement() -> Select[Any]:
    last = select(func.max(Pick.sequence)).where(Pick.job_id == Job.id).scalar_subquery()
    stmt = select(Job.id, last).where(Job.id.in_(bindparam("job_ids", expanding=True)))
    return stmt.order_by(Job.id).with_for_update(key_share=True, of=Job)


# Statements are built once: building takes longer than the database takes to answer.
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
