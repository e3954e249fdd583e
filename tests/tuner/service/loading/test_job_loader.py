"""Loading of submitted jobs, from the row to the session."""

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import replace

import pytest
from sqlalchemy.exc import DataError

from records import jobs
from records.models import Job, JobState, Target
from records.tuning import attempts
from tests.engines.toy_network import Workshop
from tests.waiting import wait_for
from tuner.context import Context
from tuner.errors import ModelError, WorkerLost
from tuner.executors.local import LocalExecutor
from tuner.jobs.preparation import Prepared
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.jobs.spec import TuneSpec
from tuner.jobs.submission import submit_request
from tuner.service.loading import job_loader, limited_loading
from tuner.service.loading.job_loader import JobLoader, LoadedJob
from tuner.service.loading.limited_loading import ProcessLimits
from tuner.settings.request_caps import RequestCaps
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import Pool

REQUEST = TuneRequest((ModelRequest("zoo:mlp"),), TuneSpec(trials=0))
OTHER = ModelRequest("zoo:mlp?batch=2")


@pytest.fixture
def loader(context: Context) -> JobLoader:
    """A loader of an empty database."""
    return JobLoader(context, ProcessLimits(2**30), lambda _job, _activity: None)


def load_next(loader: JobLoader) -> LoadedJob | None:
    """Claim the next job and load it."""
    job = loader.claim(())
    assert job is not None
    return loader.load(job)


def submit(context: Context, request: TuneRequest = REQUEST) -> int:
    """Submit a job and return its id."""
    with context.sessions.begin() as session:
        return submit_request(session, request, "")[0].id


def job_of(context: Context, job_id: int) -> Job:
    """Read a job."""
    with context.sessions() as session:
        return session.get_one(Job, job_id)


def test_trials_requested_during_the_load_are_made(
    context: Context, loader: JobLoader, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that asks for trials during its load is tuned, though it had asked for none."""
    shop = Workshop(context.sessions, context.settings.data_dir, workers)

    def load(_context: Context, models: Sequence[ModelRequest], *_: object) -> Prepared:
        assert submit(context, replace(REQUEST, spec=TuneSpec(trials=24))) == 1
        return shop.prepare(models[0].name)

    submit(context)
    monkeypatch.setattr(job_loader, "load_all", load)
    loaded = load_next(loader)
    assert loaded is not None
    session = loader.open(shop.context, loaded)

    assert session is not None
    assert job_of(context, session.job_id).state == "running"
    assert job_of(context, session.job_id).budget_trials == 24


def test_rounds_of_no_requested_size_are_within_the_limit_of_the_service(
    context: Context, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget that would make rounds of 64 trials makes rounds of 2."""
    shop = Workshop(context.sessions, context.settings.data_dir, workers)
    caps = RequestCaps(max_trials_per_round=2)
    limited = replace(context, settings=replace(context.settings, request_caps=caps))
    loader = JobLoader(limited, ProcessLimits(2**30), lambda _job, _activity: None)
    monkeypatch.setattr(job_loader, "load_all", lambda *_: shop.prepare())
    submit(context, replace(REQUEST, spec=TuneSpec(trials=4096)))
    loaded = load_next(loader)
    assert loaded is not None

    async def choose() -> int:
        session = loader.open(shop.context, loaded)
        assert session is not None
        session.start()
        pick = session.next_pick()
        assert pick is not None
        return pick.n_trials

    assert asyncio.run(choose()) == 2


def test_a_job_for_its_tasks_alone_is_done(
    context: Context, loader: JobLoader, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is done once its network is known, and never opened."""
    shop = Workshop(context.sessions, context.settings.data_dir, workers)
    monkeypatch.setattr(job_loader, "load_all", lambda *_: shop.prepare())
    job_id = submit(context)

    assert load_next(loader) is None
    job = job_of(context, job_id)
    assert (job.state, job.network_id is None) == ("done", False)


def test_a_message_that_cannot_be_stored_fails_its_job_alone(
    context: Context, loader: JobLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job fails with a message that can be stored."""
    set_state = jobs.set_state

    def refuse(*args: object, **named: object) -> object:
        if any(str(arg).startswith("odd") for arg in args):
            raise DataError("", None, ValueError("odd"))
        return set_state(*args, **named)  # type: ignore[arg-type]

    def load(*_: object) -> Prepared:
        raise ModelError("odd")

    monkeypatch.setattr(job_loader, "load_all", load)
    monkeypatch.setattr(jobs, "set_state", refuse)
    job_id = submit(context)

    assert load_next(loader) is None
    expected: tuple[JobState, str] = ("failed", job_loader.NO_MESSAGE)
    job = job_of(context, job_id)
    assert (job.state, job.message) == expected


def test_a_busy_job_is_not_claimed_again(context: Context, loader: JobLoader) -> None:
    """A running job is claimed unless this process works on it already."""
    job_id = submit(context)

    job = loader.claim(())

    assert job is not None
    assert job.id == job_id
    assert loader.claim({job_id}) is None
    again = loader.claim(())
    assert again is not None
    assert again.id == job_id


def test_claimed_jobs_return_to_the_queue(context: Context, loader: JobLoader) -> None:
    """A load that is given up leaves its job as it was submitted."""
    job_id = submit(context)
    loader.claim(())

    loader.requeue()

    assert job_of(context, job_id).state == "queued"


def set_attempts(context: Context, job_id: int, n_attempts: int) -> None:
    """Pretend that this number of processes died over a job."""
    with context.sessions.begin() as session:
        session.get_one(Job, job_id).attempts = n_attempts


def test_a_job_that_three_processes_died_over_is_quarantined(
    context: Context, loader: JobLoader
) -> None:
    """A death leaves the attempt; the fourth coordinator takes the next job instead."""
    poison, other = submit(context), submit(context, replace(REQUEST, models=(OTHER,)))
    for n_deaths in range(attempts.MAX_DEATHS):
        job = loader.claim(())
        assert job is not None
        assert (job.id, job.attempts) == (poison, n_deaths + 1)

    job = loader.claim(())

    assert job is not None
    assert job.id == other
    quarantined = job_of(context, poison)
    assert (quarantined.state, quarantined.quarantined) == ("failed", True)
    assert "the worker's process died 3 times while loading" in (quarantined.message or "")


def test_a_suspect_is_left_out_while_another_is_worked_on(
    context: Context, loader: JobLoader
) -> None:
    """The jobs behind it are served."""
    suspect, other = submit(context), submit(context, replace(REQUEST, models=(OTHER,)))
    set_attempts(context, suspect, attempts.SUSPECT_DEATHS)

    job = loader.claim((), with_suspects=False)

    assert job is not None
    assert job.id == other


def test_an_orderly_end_of_a_load_is_no_death(
    context: Context, loader: JobLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load that is given up takes its attempt back; one that fails clears the earlier ones."""
    job_id = submit(context)
    set_attempts(context, job_id, 1)
    loader.claim(())
    loader.requeue()
    assert job_of(context, job_id).attempts == 1

    def load(*_: object) -> Prepared:
        raise ModelError("odd")

    monkeypatch.setattr(job_loader, "load_all", load)
    assert load_next(loader) is None
    assert (job_of(context, job_id).state, job_of(context, job_id).attempts) == ("failed", 0)


def test_a_load_that_succeeds_takes_its_attempt_back(
    context: Context, loader: JobLoader, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier deaths may have been in the finals, so they still count."""
    shop = Workshop(context.sessions, context.settings.data_dir, workers)
    monkeypatch.setattr(job_loader, "load_all", lambda *_: shop.prepare())
    job_id = submit(context, replace(REQUEST, spec=TuneSpec(trials=8)))
    set_attempts(context, job_id, 1)

    assert load_next(loader) is not None
    assert job_of(context, job_id).attempts == 1


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Functions whose calls find their worker killed, as the kernel does when memory runs out."""
    functions: list[str] = []

    def start(*args: object, **options: object) -> Pool:
        pool = fresh_worker(*args, **options)  # type: ignore[arg-type]
        submit = pool.submit

        def kill_and_submit(module: str, function: str, *args: object, **options: object) -> object:
            if function not in functions:
                return submit(module, function, *args, **options)  # type: ignore[arg-type]
            functions.remove(function)
            pid = submit("os", "getpid").result()
            os.kill(pid, signal.SIGSTOP)
            call = submit(module, function, *args, **options)  # type: ignore[arg-type]
            wait_for(call.future.running)  # the worker has it, and cannot answer it
            os.kill(pid, signal.SIGKILL)
            return call

        monkeypatch.setattr(pool, "submit", kill_and_submit)
        return pool

    monkeypatch.setattr(limited_loading, "fresh_worker", start)
    return functions


def test_a_load_whose_process_is_killed_is_tried_once_more(
    context: Context, loader: JobLoader, kills: list[str]
) -> None:
    """Another process may have taken the memory; the death counts for quarantine."""
    job_id = submit(context, replace(REQUEST, spec=TuneSpec(trials=8)))
    kills += ["extract"]

    assert load_next(loader) is not None
    job = job_of(context, job_id)
    assert (job.state, job.attempts, kills) == ("running", 1, [])


def test_a_load_whose_process_is_killed_twice_fails(
    context: Context, loader: JobLoader, kills: list[str]
) -> None:
    """With the reason."""
    job_id = submit(context, replace(REQUEST, spec=TuneSpec(trials=8)))
    kills += ["extract", "extract", "extract"]

    assert load_next(loader) is None
    job = job_of(context, job_id)
    assert (job.state, job.attempts, kills) == ("failed", 0, ["extract"])
    assert "mlp: the worker was killed by SIGKILL while it was loaded" in (job.message or "")


def test_only_a_killed_worker_may_have_used_too_much_memory(
    context: Context, loader: JobLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message of a job whose process ended otherwise speaks of no limit."""

    def prepare(*_: object, **__: object) -> Prepared:
        raise WorkerLost("no worker can be started")

    monkeypatch.setattr(limited_loading, "prepare", prepare)
    job_id = submit(context)

    assert load_next(loader) is None
    message = job_of(context, job_id).message or ""
    assert "no worker can be started while it was loaded" in message
    assert "memory" not in message


def test_a_load_that_was_given_up_is_not_tried_again(
    context: Context, loader: JobLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread outlives the loop of a service that stops; the job waits as it did before."""
    loads = []

    def load(*_: object) -> Prepared:
        loads.append(1)
        loader.requeue()
        raise WorkerLost("gone", killed=True)

    monkeypatch.setattr(job_loader, "load_all", load)
    job_id = submit(context)
    set_attempts(context, job_id, 1)

    assert load_next(loader) is None
    job = job_of(context, job_id)
    assert (job.state, job.attempts, len(loads)) == ("queued", 1, 1)


def test_records_of_other_settings_never_block_a_job(
    context: Context, loader: JobLoader, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials of a command line with odd settings are set apart, and the job has a new target."""
    shop = Workshop(context.sessions, context.settings.data_dir, workers)
    odd = shop.prepare()
    shop.tune(odd, 4, number=2)
    monkeypatch.setattr(job_loader, "load_all", lambda *_: shop.prepare())
    job_id = submit(context, replace(REQUEST, spec=TuneSpec(trials=8)))

    loaded = load_next(loader)
    assert loaded is not None
    assert loader.open(shop.context, loaded) is None
    assert job_of(context, job_id).state == "queued"
    loaded = load_next(loader)
    assert loaded is not None
    session = loader.open(shop.context, loaded)

    assert session is not None
    assert session.target_id != odd.target_id
    with context.sessions() as reader:
        device = reader.get_one(Target, odd.target_id).device
    assert device["timed_with"] == {"cache_flush": True, "number": 2}
    assert loader.claim({job_id}) is None
