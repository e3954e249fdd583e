"""Places for loading, and the owners who have them."""

import asyncio
import signal
import threading
from typing import Any

import pytest

from records import jobs
from tests.engines.toy import SLOW_BATCH
from tests.engines.toy_network import Workshop
from tuner.context import Context
from tuner.errors import ModelError
from tuner.executors.local import LocalExecutor
from tuner.jobs.preparation import Prepared
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.jobs.spec import TuneSpec
from tuner.jobs.submission import submit_request
from tuner.service.cpu_hold import CpuHold
from tuner.service.loading import job_loader
from tuner.service.loading.job_loader import JobLoader
from tuner.service.loading.job_poller import JobPoller
from tuner.service.loading.limited_loading import ProcessLimits
from tuner.tuning.coordinator import Coordinator
from tuner.workers.processes import fork_server


def submit(context: Context, owner: str | None, n_jobs: int) -> None:
    """Submit jobs of an owner."""
    for i in range(n_jobs):
        request = TuneRequest((ModelRequest(f"zoo:mlp?batch={i + 2}"),), TuneSpec(trials=0))
        with context.sessions.begin() as session:
            submit_request(session, request, "", owner=owner)


def loading(
    context: Context, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> list[str | None]:
    """Return the owners of the jobs that load at once, if no load ends."""
    ended = threading.Event()

    def load(*_: object) -> Prepared:
        ended.wait(30.0)
        raise ModelError("it took too long")

    async def run() -> list[str | None]:
        shop = Workshop(context.sessions, context.settings.data_dir, workers)
        loader = JobLoader(context, ProcessLimits(2**30), lambda _job, _activity: None)
        coordinator = Coordinator(shop.context, keep_running=True)
        cpu = CpuHold(context.settings)
        poller = JobPoller(loader, shop.context, coordinator, cpu, lambda: False)
        polling = asyncio.create_task(poller.run())
        async with asyncio.timeout(20.0):
            while not poller._loads:
                await asyncio.sleep(0.05)
        # Longer than the poller waits between two looks for jobs.
        await asyncio.sleep(1.2)
        owners = [job.owner for job in poller._loads.values()]
        ended.set()
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        cpu.release()
        return owners

    monkeypatch.setattr(job_loader, "load_all", load)
    return asyncio.run(run())


def test_the_last_place_is_for_an_owner_who_has_none(
    context: Context, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two slow models of one owner do not hold up the model of another who comes later."""
    submit(context, "ada", 3)

    assert loading(context, workers, monkeypatch) == ["ada"]
    submit(context, "bob", 1)
    assert sorted(map(str, loading(context, workers, monkeypatch))) == ["ada", "bob"]


def test_a_service_without_owners_uses_all_places(
    context: Context, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On loopback without tokens, all jobs belong to the same person."""
    submit(context, None, 3)

    assert loading(context, workers, monkeypatch) == [None, None]


def test_a_cancelled_job_gives_its_place_back(
    context: Context, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that loads its model is killed; the job stays cancelled."""
    monkeypatch.setenv("TOY_SPLIT_SECS", "600")
    request = TuneRequest((ModelRequest(f"zoo:mlp?batch={SLOW_BATCH}"),), TuneSpec(trials=0))
    with context.sessions.begin() as session:
        job_id = submit_request(session, request, "")[0].id
    started: list[fork_server.ForkedProcess] = []

    def fork(*args: Any, **options: Any) -> fork_server.ForkedProcess:
        started.append(forks(*args, **options))
        return started[-1]

    async def run() -> None:
        shop = Workshop(context.sessions, context.settings.data_dir, workers)
        loader = JobLoader(context, ProcessLimits(2**30), lambda _job, _activity: None)
        coordinator = Coordinator(shop.context, keep_running=True)
        cpu = CpuHold(context.settings)
        poller = JobPoller(loader, shop.context, coordinator, cpu, lambda: False)
        polling = asyncio.create_task(poller.run())
        async with asyncio.timeout(60.0):
            while not started:
                await asyncio.sleep(0.05)
            with context.sessions.begin() as session:
                jobs.set_state(session, job_id, "cancelled")
            while poller.is_loading:
                await asyncio.sleep(0.05)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        cpu.release()

    forks = fork_server.fork
    monkeypatch.setattr(fork_server, "fork", fork)
    asyncio.run(run())

    assert [process.poll() for process in started] == [-signal.SIGKILL]
    with context.readers() as session:
        assert jobs.get_job(session, job_id).state == "cancelled"
