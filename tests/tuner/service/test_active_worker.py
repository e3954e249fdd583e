"""The parts of a service worker beside each other, in one event loop."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from records import jobs
from records.errors import LeaseLost
from records.service import builds
from records.service.service_models import Build, Lease
from tests.tuner.service.loading.test_job_loader import job_of, submit
from tuner.context import Context
from tuner.errors import WorkError
from tuner.executors.local import LocalExecutor
from tuner.jobs.preparation import Prepared
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.jobs.spec import TuneSpec
from tuner.service.active_worker import ActiveWorker
from tuner.service.builds import build_queue
from tuner.service.coordinator_lease import CoordinatorLease
from tuner.service.cpu_hold import CpuHold
from tuner.service.loading import job_loader
from tuner.service.loading.limited_loading import ProcessLimits, load_all
from tuner.tuning.context import TuningContext
from tuner.tuning.coordinator import Coordinator
from tuner.tuning.tasks.cost_model_manager import CostModelManager

_TIMEOUT_SECS = 60.0

Scenario = Callable[[], Awaitable[None]]


def request(batch: int, trials: int = 8) -> TuneRequest:
    """Request a small network."""
    model = ModelRequest(f"zoo:mlp?batch={batch}")
    return TuneRequest((model,), TuneSpec(trials=trials, trials_per_round=4, cost_model="random"))


def run_beside(context: Context, executor: LocalExecutor, scenario: Scenario) -> None:
    """Run a service worker until a scenario in the same event loop ends, or the worker fails."""

    async def run() -> None:
        with CoordinatorLease(context.engine) as lease:
            held = lease.acquire()
            assert held is not None
            cpu = CpuHold(context.settings)
            worker = ActiveWorker(context, executor, (lease, held, cpu), ProcessLimits(2**30))
            serving = asyncio.ensure_future(worker._run())
            playing = asyncio.ensure_future(scenario())
            await asyncio.wait({serving, playing}, return_when=asyncio.FIRST_COMPLETED)
            for task in (serving, playing):
                if task.done():
                    task.result()
                task.cancel()
            await asyncio.wait({serving, playing})
            cpu.release()

    asyncio.run(asyncio.wait_for(run(), _TIMEOUT_SECS))


async def until(is_true: Callable[[], object]) -> None:
    """Wait until something is true."""
    while not is_true():
        await asyncio.sleep(0.02)


async def until_done(context: Context, job_id: int) -> None:
    """Wait until a job is done; one that fails does not become so."""
    await until(lambda: job_of(context, job_id).state in ("done", "failed"))
    job = job_of(context, job_id)
    assert job.state == "done", job.message


@contextmanager
def blocking() -> Iterator[tuple[threading.Event, threading.Event]]:
    """Yield an event that blocked work sets, and one that it waits for; the latter is set last."""
    started, released = threading.Event(), threading.Event()
    try:
        yield started, released
    finally:
        released.set()


def build_of(context: Context, build_id: int) -> Build:
    """Read a build."""
    with context.sessions() as session:
        return builds.get_build(session, build_id)


def request_build(context: Context, job_id: int) -> int:
    """Request the library of a job, and return the build's id."""
    with context.sessions.begin() as session:
        return builds.request_build(session, job_id).id


def test_a_job_is_tuned_while_a_library_is_built(
    context: Context, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that takes long holds up neither the admission nor the measuring of a job."""

    async def scenario() -> None:
        first = submit(context, request(1, trials=0))
        await until_done(context, first)
        build_id = request_build(context, first)
        await until(started.is_set)

        second = submit(context, request(2))
        await until_done(context, second)

        assert job_of(context, second).reached_trials == 8
        assert build_of(context, build_id).state == "running"
        released.set()
        await until(lambda: build_of(context, build_id).state == "failed")
        assert build_of(context, build_id).message == "too large"

    def build(*_: object) -> None:
        started.set()
        released.wait()
        raise WorkError("too large")

    monkeypatch.setattr(build_queue, "build_into_cache", build)
    with blocking() as (started, released):
        run_beside(context, workers, scenario)


@pytest.mark.in_ci
@pytest.mark.slow("5 s: many jobs")
def test_jobs_that_have_ended_leave_nothing_in_memory(
    context: Context, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service runs for months, and each job may have a seed of its own."""

    async def scenario() -> None:
        for seed in range(2):
            tune = request(seed + 1)
            job_id = submit(
                context, replace(tune, spec=tune.spec.model_copy(update={"seed": seed}))
            )
            await until_done(context, job_id)
        assert len(managers) == 2
        await until(lambda: not living(managers))
        (tuning,) = living(contexts)
        assert not tuning.in_flight
        assert not tuning.measure_context.reference_locks

    managers = made_from_now_on(CostModelManager, monkeypatch)
    contexts = made_from_now_on(TuningContext, monkeypatch)
    run_beside(context, workers, scenario)


def made_from_now_on(kind: type, monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """Return a list that gets weak references to the objects of a class, as they are made."""
    made: list[weakref.ref[Any]] = []
    make = kind.__init__  # type: ignore[misc]  # of this class

    def make_and_note(each: object, *args: object, **named: object) -> None:
        make(each, *args, **named)
        made.append(weakref.ref(each))

    monkeypatch.setattr(kind, "__init__", make_and_note)
    return made


def living(objects: list[weakref.ref[Any]]) -> list[Any]:
    """Return the objects that something refers to."""
    gc.collect()
    return [each for reference in objects if (each := reference()) is not None]


def test_a_job_is_tuned_while_another_is_loaded(
    context: Context, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow load holds up neither the admission nor the measuring of a job; it is tuned later."""

    def load(context: Context, models: Sequence[ModelRequest], *others: object) -> Prepared:
        if models[0].reference.endswith("batch=1"):
            started.set()
            released.wait()
        return load_all(context, models, *others)  # type: ignore[arg-type]

    async def scenario() -> None:
        slow = submit(context, request(1))
        await until(started.is_set)

        quick = submit(context, request(2))
        await until_done(context, quick)

        assert job_of(context, quick).reached_trials == 8
        assert job_of(context, slow).state == "running"
        released.set()
        await until_done(context, slow)

    monkeypatch.setattr(job_loader, "load_all", load)
    with blocking() as (started, released):
        run_beside(context, workers, scenario)


def test_a_worker_that_ends_returns_its_jobs_to_the_queue(
    context: Context, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is measured, a job that is loaded and a build that runs can all be resumed."""

    def load(context: Context, models: Sequence[ModelRequest], *others: object) -> Prepared:
        if models[0].reference.endswith("batch=2"):
            loading.set()
            released.wait()
        return load_all(context, models, *others)  # type: ignore[arg-type]

    def build(*_: object) -> None:
        building.set()
        released.wait()

    async def scenario() -> None:
        submit(context, request(1, trials=10_000))
        await until(lambda: job_of(context, 1).spent_secs > 0)
        request_build(context, 1)
        submit(context, request(2))
        await until(lambda: loading.is_set() and building.is_set())

    monkeypatch.setattr(job_loader, "load_all", load)
    monkeypatch.setattr(build_queue, "build_into_cache", build)
    building = threading.Event()
    with blocking() as (loading, released):
        run_beside(context, workers, scenario)

        assert [job_of(context, job_id).state for job_id in (1, 2)] == ["queued", "queued"]
        assert build_of(context, 1).state == "queued"


def test_an_interrupt_does_not_cut_short_the_end_of_a_part(
    context: Context, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that was cancelled with all tasks of the loop is not cancelled again."""
    ended = []

    async def serve(_: Coordinator) -> None:
        try:
            await asyncio.sleep(_TIMEOUT_SECS)
        finally:
            await asyncio.sleep(0.1)
            ended.append("coordinator")

    async def run() -> None:
        with CoordinatorLease(context.engine) as lease:
            held = lease.acquire()
            assert held is not None
            cpu = CpuHold(context.settings)
            worker = ActiveWorker(context, workers, (lease, held, cpu), ProcessLimits(2**30))
            serving = asyncio.create_task(worker._run())
            await asyncio.sleep(0.1)
            for part in asyncio.all_tasks() - {serving, asyncio.current_task()}:
                part.cancel()
            await asyncio.sleep(0)
            serving.cancel()
            await asyncio.wait([serving])
            cpu.release()

    monkeypatch.setattr(Coordinator, "serve", serve)
    asyncio.run(run())

    assert ended == ["coordinator"]


def test_a_lost_lease_ends_the_worker(context: Context, workers: LocalExecutor) -> None:
    """A worker stops by itself, and not only with its next write."""

    async def scenario() -> None:
        with context.sessions.begin() as session:
            session.execute(update(Lease).values(holder="another", epoch=Lease.epoch + 1))
        await asyncio.sleep(_TIMEOUT_SECS)

    with pytest.raises(LeaseLost):
        run_beside(context, workers, scenario)


def test_a_job_that_is_stopped_while_it_is_loaded_is_not_tuned(
    context: Context, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays as it was stopped, and the next job is served."""

    def load(context: Context, models: Sequence[ModelRequest], *others: object) -> Prepared:
        if models[0].reference.endswith("batch=1"):
            with context.sessions.begin() as session:
                jobs.set_state(session, 1, "cancelled")
        return load_all(context, models, *others)  # type: ignore[arg-type]

    async def scenario() -> None:
        stopped = submit(context, request(1))
        other = submit(context, request(2))
        await until_done(context, other)
        assert job_of(context, stopped).state == "cancelled"

    monkeypatch.setattr(job_loader, "load_all", load)
    run_beside(context, workers, scenario)
