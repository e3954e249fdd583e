"""A job whose coordinator has lost its lease is not shown as running."""

import shlex

import pytest
from sqlalchemy.orm import Session

from records import jobs
from records.models import Job, JobState
from records.service import leases, submissions
from records.tuning import events, job_states
from tests.records import make
from tuner.queries import jobs as job_queries

_FOR_A_MINUTE, _EXPIRED = 60, -1


@pytest.mark.parametrize(
    ("state", "submission", "lease_secs", "shown"),
    [
        ("running", "", _FOR_A_MINUTE, "running"),
        ("running", "", _EXPIRED, "paused"),
        # An earlier version of the tuner ran it.
        ("running", "", None, "paused"),
        ("running", "a request", _FOR_A_MINUTE, "running"),
        ("running", "a request", _EXPIRED, "queued"),
        ("queued", "a request", None, "queued"),
        ("done", "", None, "done"),
    ],
)
def test_state_of_a_job_in_every_place(
    session: Session, state: JobState, submission: str, lease_secs: int | None, shown: JobState
) -> None:
    """The list, its filter, its counts, the page and the version of the table agree."""
    job_id = make.job(session)
    session.get_one(Job, job_id).submission = submission
    jobs.set_state(session, job_id, state)
    if lease_secs is not None:
        role = leases.COORDINATOR if submission else f"{leases.JOB_PREFIX}{job_id}"
        leases.acquire(session, role, "a process", lease_secs)

    (listed,) = job_queries.list_jobs(session, states=[shown])

    assert listed.state == shown
    assert job_states.state_of(session, job_id) == shown
    assert jobs.count_by_state(session) == {shown: 1}
    assert job_queries.read_job(session, job_id).job.state == shown
    assert events.last_events(session, [job_id])[job_id].state == shown
    others = [other for other in ("queued", "running", "paused", "done") if other != shown]
    assert job_queries.list_jobs(session, states=others) == []
    assert submissions.hide(session, job_id) == (shown not in ("queued", "running"))


def test_a_paused_job_of_a_command_says_what_resumes_it(session: Session) -> None:
    """A command is named if it is known, and only while the job is paused."""
    job_id = make.job(session)
    jobs.set_state(session, job_id, "running")
    stored = ("--database", "postgresql://db.lan/tuner?sslmode=require", "--data-dir=/srv/it's b")
    elsewhere = f"tuner tune a.onnx {shlex.join(stored)}"
    for command, note in (("tuner tune a.onnx", ""), (elsewhere, ", with the same database")):
        session.get_one(Job, job_id).settings = {"command": command}

        shown = job_queries.list_jobs(session)[0].message
        assert shown == f"`tuner tune a.onnx` resumes it{note}"
    leases.acquire(session, f"{leases.JOB_PREFIX}{job_id}", "a process", _FOR_A_MINUTE)
    assert job_queries.list_jobs(session)[0].message is None
