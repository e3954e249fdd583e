"""A worker profiles the library of a build on its device, or says why it cannot."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from records.models import Job
from records.service import builds
from records.service.service_models import Build
from tests.tuner.service.builds.test_build_queue import LIMITS
from tests.tuner.service.loading.test_job_loader import submit
from tuner.context import Context
from tuner.engines.environments import ENGINES
from tuner.executors.local import LocalExecutor
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.jobs.spec import TuneSpec
from tuner.queries.profiles import read_profile
from tuner.service.builds.build_queue import BuildQueue
from tuner.service.cpu_hold import CpuHold
from tuner.service.loading.job_loader import JobLoader
from tuner.tuning.context import TuningContext


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let other tests hold the CPU at the same time."""
    monkeypatch.setenv("TUNER_RUNTIME_DIR", str(tmp_path / "locks"))


def profiled(context: Context, workers: LocalExecutor) -> Build:
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
            assert await queue.serve_next()
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
    assert stored is not None
    assert len(stored.profile.turn_secs) == 8
    kernels = stored.profile.kernels
    assert all(len(kernel.turn_secs) == 8 for kernel in kernels)
    nodes = [kernel.nodes for kernel in kernels]
    assert ("flatten_0", "gemm_1", "relu_2") in nodes
    assert stored.profile.gains().keys() == {f"tuner jobs budget {build.job_id} --trials 256"}
    assert "peaks of this device are unknown" in stored.profile.roof_problem
