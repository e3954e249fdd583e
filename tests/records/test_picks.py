"""Picks of a job are numbered, and open ones are resumed."""

import math

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from records import database, picks
from records.errors import NoSuchRow
from records.models import Job, Pick
from records.tuning import events
from tests.records import make


def test_picks_are_numbered_per_job(session: Session) -> None:
    """Each job counts from 1."""
    task_id, first, second = make.task(session), make.job(session, 1), make.job(session, 2)

    made = [make.pick(session, job_id, task_id, 64).sequence for job_id in (first, second, first)]

    assert made == [1, 1, 2]


def test_picks_of_a_group_are_numbered_as_one_by_one(session: Session) -> None:
    """Each job continues its own numbers and gets its own events."""
    task_id, first, second = make.task(session), make.job(session, 1), make.job(session, 2)
    make.pick(session, second, task_id, 64)

    new = [picks.NewPick(job_id, task_id, 8, {"gain": 0.5}) for job_id in (second, first, second)]
    made = picks.add_picks(session, new)

    assert [pick.sequence for pick in made] == [2, 1, 3]
    history = events.events_after(session, second, 0)
    assert [event.data["pick"] for event in history] == [1, 2, 3]


def test_rounds_that_end_together_are_stored_separately(session: Session) -> None:
    """Each pick has its own result, each job its own time; an infinite latency is null."""
    task_id, first, second = make.task(session), make.job(session, 1), make.job(session, 2)
    made = [make.pick(session, job_id, task_id, 8).id for job_id in (first, second, first)]
    picks.end_picks(
        session,
        [
            picks.RoundEnd(made[2], first, 2.0, 0.5, 16, 12, spent_secs=1.5),
            picks.RoundEnd(made[0], first, 3.0, math.inf, 8, 4, spent_secs=1.0),
            picks.RoundEnd(made[1], second, None, 0.25, 8, 8, failed="out of luck"),
        ],
    )
    session.expire_all()

    stored = [session.get_one(Pick, pick_id) for pick_id in made]
    assert all(pick.done for pick in stored)
    assert [(pick.secs, pick.total_secs, pick.job_trials) for pick in stored] == [
        (3.0, None, 4),
        (None, 0.25, 8),
        (2.0, 0.5, 12),
    ]
    assert stored[1].terms == {"failed": "out of luck"}
    assert [session.get_one(Job, job_id).spent_secs for job_id in (first, second)] == [2.5, 0.0]
    ends = [event for event in events.events_after(session, first, 0) if event.kind == "round"]
    assert [event.data["pick"] for event in ends] == [2, 1]


def test_open_picks_are_the_unfinished_ones_of_a_job(session: Session) -> None:
    """A completed round is not resumed; the others keep their order."""
    task_id, job_id = make.task(session), make.job(session, 1)
    assert picks.open_picks(session, job_id) == []
    made = [make.pick(session, job_id, task_id, 64) for _ in range(3)]
    make.pick(session, make.job(session, 2), task_id, 64, {})
    assert picks.finish_pick(session, made[1].id).done

    assert picks.open_picks(session, job_id) == [made[0], made[2]]


def test_open_picks_are_read_from_an_index(sqlite_url: str) -> None:
    """The query does not scan completed picks."""
    engine = database.open_database(sqlite_url)
    with engine.connect() as connection:
        query = picks.open_statement(1).compile(engine, compile_kwargs={"literal_binds": True})
        plan = connection.execute(text(f"EXPLAIN QUERY PLAN {query}")).all()
    engine.dispose()

    assert [row.detail for row in plan] == ["SEARCH pick USING INDEX ix_pick_open (job_id=?)"]


def test_terms_without_a_json_form_become_null(session: Session) -> None:
    """Infinity and NaN become null at any depth; other values are stored exactly."""
    terms = {"best": [math.inf, 0.1 + 0.2], "why": {"slope": math.nan, "warm": True}}
    pick = make.pick(session, make.job(session), make.task(session), 1, terms)
    session.expire(pick)

    assert pick.terms == {"best": [None, 0.1 + 0.2], "why": {"slope": None, "warm": True}}


def test_unknown_jobs_and_picks_raise(session: Session) -> None:
    """The message names the id."""
    with pytest.raises(NoSuchRow, match="no job 5"):
        make.pick(session, 5, make.task(session), 1, {})
    with pytest.raises(NoSuchRow, match="no pick 6"):
        picks.finish_pick(session, 6)
    with pytest.raises(NoSuchRow, match="no pick 7"):
        picks.end_picks(session, [picks.RoundEnd(7, 5, None, 1.0, 0, 0)])
