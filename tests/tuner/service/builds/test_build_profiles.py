"""A worker profiles the library of a build on its device, or says why it cannot."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from records import jobs
from records.models import Job
from records.service import builds
from records.service.service_models import Build
from tests.tuner.service.builds.test_build_queue import LIMITS
from tests.tuner.service.loading.test_job_loader import submit
from tuner.context import Context
from tuner.devices.cpu_gate import CpuGate
from tuner.engines.environments import ENGINES
from tuner.executors.local import LocalExecutor
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.jobs.spec import TuneSpec
from tuner.queries.profiles import read_profile
from tuner.service.builds import build_profiles
from tuner.service.builds.build_queue import BuildQueue
from tuner.service.cpu_hold import CpuHold
from tuner.service.loading.job_loader import JobLoader
from tuner.tuning.context import TuningContext


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let other tests hold the CPU at the same time."""
    monkeypatch.setenv("TUNER_RUNTIME_DIR", str(tmp_path / "locks"))


async def hold(gate: CpuGate, secs: float) -> None:
    """Keep measurements waiting for some seconds, once one waits."""
    async with gate.shared():
        while secs and not gate._n_waiting:
            await asyncio.sleep(0.01)
        await asyncio.sleep(secs)


def profiled(context: Context, workers: LocalExecutor, delay_secs: float = 0.0) -> Build:
    """Submit the perceptron, build it with a profile and return the build."""
    job_id = submit(context, TuneRequest((ModelRequest("zoo:mlp"),), TuneSpec(trials=0)))
    loader = JobLoader(context, LIMITS, lambda _job, _activity: None)
    assert loader.load(loader.claim(()) or Job()) is None
    with context.sessions.begin() as session:
        build_id = builds.request_build(session, job_id, profile=True).id

    async def serve() -> None:
        tuning = TuningContext(context.sessions, workers, context.settings.data_dir)
        cpu = CpuHold(context.settings)
        try:
            queue = BuildQueue(context, LIMITS, tuning, lambda _job, _activity: None, cpu)
            served, _ = await asyncio.gather(queue.serve_next(), hold(tuning.cpu_gate, delay_secs))
            assert served
        finally:
            cpu.release()

    asyncio.run(serve())
    with context.sessions() as session:
        return builds.get_build(session, build_id)


def test_a_library_without_timers_is_built_all_the_same(
    context: Context, workers: LocalExecutor
) -> None:
    """The message of the build has the reason, without the paths of the service."""
    build = profiled(context, workers)

    assert build.state == "done"
    assert build.archive
    assert "cannot be timed: it was built by engine" in (build.message or "")
    assert str(context.settings.data_dir) not in (build.message or "")


@pytest.mark.tvm
@pytest.mark.filterwarnings("ignore:::tvm")
def test_a_library_is_profiled_on_the_device_of_the_worker(context: Context) -> None:
    """The process that holds the CPU profiles on it; the nodes are those of the job's model."""
    relax = replace(context, settings=context.settings.with_engine(ENGINES["relax"]))
    with LocalExecutor(relax.settings) as workers:
        build = profiled(relax, workers)

    assert (build.state, build.message) == ("done", None)
    with context.sessions() as session:
        stored = read_profile(session, build.job_id)
        assert jobs.get_job(session, build.job_id).spent_secs > 0.0
    assert stored is not None
    assert len(stored.profile.turn_secs) == 8
    kernels = stored.profile.kernels
    assert all(len(kernel.turn_secs) == 8 for kernel in kernels)
    nodes = [kernel.nodes for kernel in kernels]
    assert ("flatten_0", "gemm_1", "relu_2") in nodes
    assert stored.profile.gains().keys() == {f"tuner jobs budget {build.job_id} --trials 256"}
    assert "peaks of this device are unknown" in stored.profile.roof_problem


def test_the_wait_for_the_device_is_not_part_of_a_profile(
    context: Context, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for its limit nor for what the job is charged."""
    monkeypatch.setattr(build_profiles, "_MAX_SECS", 1.0)
    monkeypatch.setattr(build_profiles, "_profile", lambda *_: time.sleep(0.1))

    build = profiled(context, workers, delay_secs=1.5)

    assert (build.state, build.message) == ("done", None)
    with context.sessions() as session:
        assert 0.1 <= jobs.get_job(session, build.job_id).spent_secs < 1.5


def test_a_profile_that_takes_too_long_is_charged(
    context: Context, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is built all the same."""
    monkeypatch.setattr(build_profiles, "_MAX_SECS", 0.2)
    monkeypatch.setattr(build_profiles, "_profile", lambda *_: time.sleep(0.5))

    build = profiled(context, workers)

    assert (build.state, build.message) == ("done", "no profile: it took longer than 0.2 s")
    with context.sessions() as session:
        assert jobs.get_job(session, build.job_id).spent_secs >= 0.2
