"""Picks of a job are numbered, and an unfinished one is found again."""

import math

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from records import database, picks
from records.errors import NoSuchRow
from tests.records import make


def test_picks_are_numbered_per_job(session: Session) -> None:
    """Each job counts from 1."""
    task_id, first, second = make.task(session), make.job(session, 1), make.job(session, 2)

    made = [
        picks.add_pick(session, job_id, task_id, 64, {}).sequence
        for job_id in (first, second, first)
    ]

    assert made == [1, 1, 2]


def test_open_pick_is_the_last_unfinished(session: Session) -> None:
    """A finished round is not resumed."""
    task_id, job_id = make.task(session), make.job(session)
    assert picks.open_pick(session, job_id) is None
    pick = picks.add_pick(session, job_id, task_id, 64, {"gain": 0.5})

    assert picks.open_pick(session, job_id) is pick
    assert picks.finish_pick(session, pick.id).done
    assert picks.open_pick(session, job_id) is None


def test_open_picks_are_all_unfinished_ones(session: Session) -> None:
    """In their order, and of one job."""
    task_id, job_id = make.task(session), make.job(session, 1)
    made = [picks.add_pick(session, job_id, task_id, 64, {}) for _ in range(3)]
    picks.add_pick(session, make.job(session, 2), task_id, 64, {})
    picks.finish_pick(session, made[1].id)

    assert picks.open_picks(session, job_id) == [made[0], made[2]]


def test_finding_open_picks_reads_no_other(sqlite_url: str) -> None:
    """A job may have a million of them that are done."""
    engine = database.open_database(sqlite_url)
    with engine.connect() as connection:
        query = picks.open_statement(1).compile(engine, compile_kwargs={"literal_binds": True})
        plan = connection.execute(text(f"EXPLAIN QUERY PLAN {query}")).all()
    engine.dispose()

    assert [row.detail for row in plan] == ["SEARCH pick USING INDEX ix_pick_open (job_id=?)"]


def test_terms_without_a_json_form_become_null(session: Session) -> None:
    """Infinity and NaN are stored as null at any depth; the rest comes back exactly."""
    terms = {"best": [math.inf, 0.1 + 0.2], "why": {"slope": math.nan, "warm": True}}
    pick = picks.add_pick(session, make.job(session), make.task(session), 1, terms)
    session.expire(pick)

    assert pick.terms == {"best": [None, 0.1 + 0.2], "why": {"slope": None, "warm": True}}


def test_unknown_jobs_and_picks_raise(session: Session) -> None:
    """The message names the id."""
    with pytest.raises(NoSuchRow, match="no job 5"):
        picks.add_pick(session, 5, make.task(session), 1, {})
    with pytest.raises(NoSuchRow, match="no pick 6"):
        picks.finish_pick(session, 6)
