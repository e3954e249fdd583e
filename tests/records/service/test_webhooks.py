"""Webhooks are rows: what is due is delivered once, and again if it fails."""

from datetime import timedelta

import pytest
from sqlalchemy import Engine, update
from sqlalchemy.orm import Session, sessionmaker

from records import database, jobs
from records.models import Job, JobState, now
from records.service import webhooks
from records.service.service_models import Webhook
from records.tuning import events
from tests.api import make

URL = "https://ci.example/hook"
Sessions = sessionmaker[Session]


@pytest.fixture
def sessions(engine: Engine) -> Sessions:
    """Transactions on each kind of database in turn."""
    return database.sessions(engine)


def hooked(sessions: Sessions, *urls: str) -> int:
    """Store a running job with a webhook, and return its number."""
    with sessions.begin() as session:
        job = make.job(session)
        jobs.set_state(session, job.id, "running")
        for url in urls or (URL,):
            webhooks.register(session, job, url)
        return job.id


def end(sessions: Sessions, job_id: int, state: JobState = "done") -> None:
    """End a job."""
    with sessions.begin() as session:
        jobs.set_state(session, job_id, state, "as asked")


def claim(sessions: Sessions) -> list[webhooks.Delivery]:
    """Claim what is due."""
    with sessions.begin() as session:
        return webhooks.claim(session, 10)


def pass_time(sessions: Sessions, pause: timedelta) -> None:
    """Make all deliveries due earlier."""
    with sessions.begin() as session:
        for row in session.query(Webhook):
            row.due = row.due and row.due - pause


def row_of(sessions: Sessions, job_id: int) -> Webhook:
    """Read the webhook of a job."""
    with sessions() as session:
        (row,) = webhooks.of_job(session, job_id)
        return row


@pytest.mark.parametrize("state", webhooks.ENDS)
def test_an_end_is_due_at_once(sessions: Sessions, state: JobState) -> None:
    """Nothing is due before it; the delivery has the state and its reason."""
    job_id = hooked(sessions)
    assert not claim(sessions)

    end(sessions, job_id, state)
    (delivery,) = claim(sessions)

    assert (delivery.job_id, delivery.url, delivery.state) == (job_id, URL, state)
    assert delivery.message == "as asked"
    assert not claim(sessions)


def test_a_paused_job_has_not_ended(sessions: Sessions) -> None:
    """Its owner continues it, and nothing is delivered."""
    end(sessions, hooked(sessions), "paused")

    assert not claim(sessions)


def test_a_process_that_dies_leaves_its_delivery_to_another(sessions: Sessions) -> None:
    """The claim expires, and the receiver knows the delivery again by its id."""
    end(sessions, hooked(sessions))
    (first,) = claim(sessions)
    pass_time(sessions, timedelta(minutes=1))

    (second,) = claim(sessions)

    assert second == first


def test_a_failed_delivery_is_repeated_after_growing_pauses(sessions: Sessions) -> None:
    """After the last attempt it is given up, with its last outcome."""
    job_id = hooked(sessions)
    end(sessions, job_id)
    pauses = []
    for _ in range(webhooks.MAX_ATTEMPTS):
        (delivery,) = claim(sessions)
        with sessions.begin() as session:
            assert webhooks.finish(session, delivery, "HTTP 500", delivered=False)
        due = row_of(sessions, job_id).due
        if due is not None:
            pauses.append(round((due - now()).total_seconds(), -1))
            pass_time(sessions, due - now())

    assert pauses == [10, 40, 160, 640, 2560, 10240, 40960]
    with sessions() as session:
        kinds = [event.kind for event in events.events_after(session, job_id, 0)]
    assert kinds.count("webhook") == webhooks.MAX_ATTEMPTS
    row = row_of(sessions, job_id)
    assert (row.attempts, row.status, row.delivered) == (8, "HTTP 500", False)
    assert not claim(sessions)


def test_a_later_end_replaces_an_earlier_one(sessions: Sessions) -> None:
    """The outcome of the earlier delivery does not count for the later one."""
    job_id = hooked(sessions)
    end(sessions, job_id, "cancelled")
    (early,) = claim(sessions)
    with sessions.begin() as session:
        jobs.set_state(session, job_id, "queued")
    end(sessions, job_id, "done")

    with sessions.begin() as session:
        assert not webhooks.finish(session, early, "HTTP 200", delivered=True)
    (late,) = claim(sessions)

    assert (late.state, late.id != early.id) == ("done", True)


def test_an_end_before_the_webhook_is_reported(sessions: Sessions) -> None:
    """A second request for a job that is done is answered; the service's address had its report."""
    job_id = hooked(sessions, "https://old.example", URL)
    with sessions.begin() as session:
        session.execute(update(Job).where(Job.id == job_id).values(state="done"))
        webhooks.register(session, session.get_one(Job, job_id), URL)
        webhooks.register(session, session.get_one(Job, job_id), "https://all", of_service=True)

    assert [delivery.url for delivery in claim(sessions)] == [URL]
