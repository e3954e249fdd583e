"""A job from its row to its session: what is asked for while its model is loaded counts."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from sqlalchemy.exc import DataError

from records import jobs
from records.models import Job, JobState
from tests.engines.toy_network import Workshop
from tuner.context import Context
from tuner.errors import ModelError
from tuner.executors.local import LocalExecutor
from tuner.jobs.preparation import ModelRequest, Prepared
from tuner.jobs.requests import TuneRequest
from tuner.jobs.submission import submit_request
from tuner.service import job_loader
from tuner.service.job_loader import JobLoader
from tuner.service.loading import Limits

REQUEST = TuneRequest(ModelRequest("zoo:mlp"), trials=0)


@pytest.fixture
def taking(context: Context) -> JobLoader:
    """An intake of an empty database."""
    return JobLoader(context, Limits(2**30), lambda _job, _activity: None)


def submit(context: Context, request: TuneRequest = REQUEST) -> int:
    """Ask for a job."""
    with context.sessions.begin() as session:
        return submit_request(session, request, "")[0].id


def job_of(context: Context, job_id: int) -> Job:
    """Read a job."""
    with context.sessions() as session:
        return session.get_one(Job, job_id)


def test_trials_asked_for_while_the_model_is_loaded_are_made(
    context: Context, taking: JobLoader, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that wanted its tasks alone when loading began, and more when it ended, is tuned."""
    shop = Workshop(context.sessions, context.settings.data_dir, workers)

    def load(_context: Context, models: Sequence[ModelRequest], *_: object) -> Prepared:
        assert submit(context, replace(REQUEST, trials=24)) == 1
        return shop.prepare(models[0].name)

    submit(context)
    monkeypatch.setattr(job_loader, "load_all", load)
    (opening,) = taking.take(())
    session = opening(shop.context)

    assert session is not None
    assert job_of(context, session.job_id).state == "running"
    assert job_of(context, session.job_id).budget_trials == 24


def test_a_job_for_its_tasks_alone_is_done(
    context: Context, taking: JobLoader, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its network then."""
    shop = Workshop(context.sessions, context.settings.data_dir, workers)
    monkeypatch.setattr(job_loader, "load_all", lambda *_: shop.prepare())
    job_id = submit(context)

    assert taking.take(()) == ()
    job = job_of(context, job_id)
    assert (job.state, job.network_id is None) == ("done", False)


def test_a_message_that_cannot_be_stored_fails_its_job_alone(
    context: Context, taking: JobLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another message takes its place."""
    set_state = jobs.set_state

    def refuse(*args: object, **named: object) -> object:
        if "odd" in args:
            raise DataError("", None, ValueError("odd"))
        return set_state(*args, **named)  # type: ignore[arg-type]

    def load(*_: object) -> Prepared:
        raise ModelError("odd")

    monkeypatch.setattr(job_loader, "load_all", load)
    monkeypatch.setattr(jobs, "set_state", refuse)
    job_id = submit(context)

    assert taking.take(()) == ()
    expected: tuple[JobState, str] = ("failed", job_loader.NO_MESSAGE)
    job = job_of(context, job_id)
    assert (job.state, job.message) == expected
