"""Builds that cannot be served say why."""

import asyncio
import hashlib
import threading
from pathlib import Path

import pytest
from sqlalchemy import select

from records import jobs
from records.models import Extraction, Job, Network
from records.service import builds, submissions
from records.service.owners.access import Viewer
from records.service.service_models import Build
from records.tuning import attempts
from tests.tuner.cli.commands.test_bench import text_model
from tests.tuner.networks.detectors import detector
from tests.tuner.service.loading.test_job_loader import kills, submit
from tuner.client.downloads import unpack
from tuner.context import Context
from tuner.errors import WorkerLost
from tuner.executors.local import LocalExecutor
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.jobs.spec import TuneSpec
from tuner.jobs.submission import submit_request
from tuner.library import manifest
from tuner.queries import catalogue
from tuner.queries.jobs import list_jobs, recent_jobs
from tuner.service.builds.build_queue import BuildQueue
from tuner.service.cpu_hold import CpuHold
from tuner.service.loading.job_loader import JobLoader
from tuner.service.loading.limited_loading import ProcessLimits
from tuner.tuning.context import TuningContext

__all__ = ["kills"]
LIMITS = ProcessLimits(2**31)


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let other tests hold the CPU at the same time."""
    monkeypatch.setenv("TUNER_RUNTIME_DIR", str(tmp_path / "locks"))


async def serve(context: Context, workers: LocalExecutor, *, turn_is_taken: bool = False) -> bool:
    """Serve the next build."""
    tuning = TuningContext(context.sessions, workers, context.settings.data_dir)
    assert not turn_is_taken or tuning.suspect_turn.try_take()
    cpu = CpuHold(context.settings)
    queue = BuildQueue(context, LIMITS, tuning, lambda _job, _activity: None, cpu)
    try:
        served = await queue.serve_next()
    finally:
        cpu.release()
    assert tuning.suspect_turn.try_take() == (not turn_is_taken)
    return served


def build_of(context: Context, workers: LocalExecutor, model: ModelRequest) -> tuple[int, int]:
    """Submit, load and build a model without trials; return the ids of its job and its build."""
    job_id = submit(context, TuneRequest((model,), TuneSpec(trials=0)))
    loader = JobLoader(context, LIMITS, lambda _job, _activity: None)
    assert loader.load(loader.claim(()) or Job()) is None
    with context.sessions.begin() as session:
        build_id = builds.request_build(session, job_id).id
    assert asyncio.run(serve(context, workers))
    return job_id, build_id


def unpacked(context: Context, build: Build) -> manifest.Manifest:
    """Unpack the library of a build beside the uploads, and return its manifest."""
    folder = context.settings.data_dir / "uploads" / "lib"
    folder.mkdir()
    with (context.settings.data_dir / "archives" / str(build.archive)).open("rb") as packed:
        unpack(packed, folder)
    return manifest.read(folder)


def test_a_build_of_a_deleted_job_says_so(context: Context, workers: LocalExecutor) -> None:
    """The build fails with a message that tells the client what to do."""
    job_id = submit(context)
    with context.sessions.begin() as session:
        jobs.set_state(session, job_id, "cancelled")
        build_id = builds.request_build(session, job_id).id
        submissions.hide(session, job_id)

    assert asyncio.run(serve(context, workers))

    with context.sessions() as session:
        build = builds.get_build(session, build_id)
    assert build.state == "failed"
    assert (
        build.message == f"job {job_id} was deleted; submit it again and then request its library"
    )


def test_a_model_with_buckets_is_one_library(context: Context, workers: LocalExecutor) -> None:
    """It has a program for each size, and says that inputs are padded; the job tunes them all."""
    uploads = context.settings.data_dir / "uploads"
    uploads.mkdir()
    path = text_model(uploads / "m.onnx")
    sha256 = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    Path(path).rename(uploads / f"{sha256}.onnx")
    buckets = {"length": ((4, 1.0), (8, 3.0))}
    model = ModelRequest(f"upload:{sha256}.onnx", name="text", buckets=buckets)
    job_id, build_id = build_of(context, workers, model)

    with context.sessions() as session:
        build = builds.get_build(session, build_id)
        job = session.get_one(Job, job_id)
        name = session.get_one(Network, job.network_id).name
    assert (build.state, build.message) == ("done", None)
    assert name == f"{sha256[:12]}@length=4 + {sha256[:12]}@length=8"
    described = unpacked(context, build)
    assert [program.inputs["ids"][0] for program in described.programs] == [(1, 4), (1, 8)]
    assert described.buckets is not None
    assert described.buckets.notes() == ("length: 1 to 8, padded to 4 or 8",)
    assert described.buckets.padding == {"mask": 0.0}


def test_a_library_is_packed_with_its_tail(context: Context, workers: LocalExecutor) -> None:
    """A submitted model with a suppression is split, tuned and built; the split says so."""
    uploads = context.settings.data_dir / "uploads"
    uploads.mkdir()
    content = detector().SerializeToString()
    sha256 = hashlib.sha256(content).hexdigest()
    (uploads / f"{sha256}.onnx").write_bytes(content)
    model = ModelRequest(f"upload:{sha256}.onnx", name="detector")
    _, build_id = build_of(context, workers, model)

    with context.sessions() as session:
        build = builds.get_build(session, build_id)
        split = session.scalars(select(Extraction)).one()
        assert any("from NonMaxSuppression on" in note for note in split.notes)
    assert (build.state, build.message) == ("done", None)
    described = unpacked(context, build)
    manifest.verify(uploads / "lib", described)
    assert "tail.onnx" in described.files
    assert described.outputs == ("kept", "scores", "places")


def test_owners_of_equal_models_do_not_see_each_others_file_names(
    context: Context, workers: LocalExecutor
) -> None:
    """A network, its library and its archive are shared; each owner has a name of its own."""
    uploads = context.settings.data_dir / "uploads"
    uploads.mkdir()
    content = detector().SerializeToString()
    sha256 = hashlib.sha256(content).hexdigest()
    (uploads / f"{sha256}.onnx").write_bytes(content)
    upload = f"upload:{sha256}.onnx"
    _, build_id = build_of(context, workers, ModelRequest(upload, name="project-x"))
    other = TuneRequest((ModelRequest(upload, name="mine"),), TuneSpec(trials=0))
    with context.sessions.begin() as session:
        submit_request(session, other, "", owner="eve")
    loader = JobLoader(context, LIMITS, lambda _job, _activity: None)
    assert loader.load(loader.claim(()) or Job()) is None

    with context.sessions() as session:
        build = builds.get_build(session, build_id)
        assert session.scalars(select(Network.name)).all() == [sha256[:12]]
        shown = {job.owner: (job.name, job.network) for job in recent_jobs(session, 9)}
        eve = Viewer("eve", is_admin=False)
        (network,) = catalogue.list_networks(session, None, 9, eve)
        (listed,) = list_jobs(session, text="MINE")
    assert shown == {None: ("project-x", "project-x"), "eve": ("mine", "mine")}
    assert network.name == "mine"
    assert listed.owner == "eve"
    assert unpacked(context, build).model_name == sha256[:12]


def test_a_build_that_three_processes_died_over_is_quarantined(
    context: Context, workers: LocalExecutor
) -> None:
    """The next build is served; one that ends, even by failing, has no attempts left."""
    job_id = submit(context)
    with context.sessions.begin() as session:
        poison = builds.request_build(session, job_id).id
        builds.set_build(session, poison, "running", attempts=attempts.MAX_DEATHS)
        other = builds.request_build(session, job_id, model_index=7).id
        builds.set_build(session, other, "running", attempts=attempts.SUSPECT_DEATHS)

    assert asyncio.run(serve(context, workers))

    with context.sessions() as session:
        quarantined, failed = (builds.get_build(session, each) for each in (poison, other))
    assert (quarantined.state, quarantined.quarantined) == ("failed", True)
    assert "died 3 times while building the library" in (quarantined.message or "")
    assert (failed.state, failed.quarantined, failed.attempts) == ("failed", False, 0)
    assert "no number 7" in (failed.message or "")


@pytest.mark.parametrize(("n_kills", "state"), [(1, "done"), (2, "failed")])
def test_a_build_whose_process_is_killed_is_tried_once_more(
    context: Context, workers: LocalExecutor, kills: list[str], n_kills: int, state: str
) -> None:
    """The second death fails it, with the reason."""
    job_id = submit(context)
    loader = JobLoader(context, LIMITS, lambda _job, _activity: None)
    assert loader.load(loader.claim(()) or Job()) is None
    with context.sessions.begin() as session:
        build_id = builds.request_build(session, job_id).id
    kills += ["link_network"] * n_kills

    assert asyncio.run(serve(context, workers))

    with context.sessions() as session:
        build = builds.get_build(session, build_id)
    assert (build.state, build.attempts, kills) == (state, 0, [])
    assert state == "done" or "killed by SIGKILL" in (build.message or "")


def test_a_build_that_was_given_up_is_not_tried_again(
    context: Context, workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread outlives the loop of a service that stops; the build waits as it did before."""
    compiling, given_up = threading.Event(), threading.Event()
    threads = []

    def build(*_: object) -> None:
        threads.append(threading.current_thread())
        compiling.set()
        given_up.wait()
        raise WorkerLost("gone", killed=True)

    async def stop() -> None:
        serving = asyncio.create_task(serve(context, workers))
        while not compiling.is_set():
            await asyncio.sleep(0.01)
        serving.cancel()
        await asyncio.wait([serving])

    monkeypatch.setattr(BuildQueue, "_compile", build)
    job_id = submit(context)
    with context.sessions.begin() as session:
        build_id = builds.request_build(session, job_id).id
        builds.set_build(session, build_id, "queued", attempts=1)
    try:
        asyncio.run(stop())
    finally:
        given_up.set()
    threads[0].join()

    with context.sessions() as session:
        waiting = builds.get_build(session, build_id)
    assert (waiting.state, waiting.attempts, len(threads)) == ("queued", 1, 1)


def test_a_suspect_build_holds_up_no_other(context: Context, workers: LocalExecutor) -> None:
    """While other work has the turn of suspects, the build behind a suspect one is served."""
    job_id = submit(context)
    with context.sessions.begin() as session:
        suspect = builds.request_build(session, job_id, model_index=8).id
        builds.set_build(session, suspect, "running", attempts=attempts.SUSPECT_DEATHS)
        other = builds.request_build(session, job_id, model_index=7).id

    assert asyncio.run(serve(context, workers, turn_is_taken=True))
    assert not asyncio.run(serve(context, workers, turn_is_taken=True))
    with context.sessions() as session:
        states = [builds.get_build(session, each).state for each in (suspect, other)]
    assert states == ["running", "failed"]

    assert asyncio.run(serve(context, workers))
    with context.sessions() as session:
        assert builds.get_build(session, suspect).state == "failed"
