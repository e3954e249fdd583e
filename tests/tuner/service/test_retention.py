"""Removal of files and rows that no job needs any more."""

import asyncio
import os
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sqlalchemy import update

from records import jobs, libraries, networks, targets, tasks
from records.errors import LeaseLost
from records.models import Job, Network, now
from records.service import builds, offered_packs, submissions, workers
from records.service.service_models import OfferedPack, Worker
from tests.tuner.service.loading.test_job_loader import submit
from tuner.build_cache import index
from tuner.build_cache.cache import open_local
from tuner.build_cache.keys import Key
from tuner.context import Context
from tuner.devices.cpu_gate import CpuGate
from tuner.jobs.models import model_cache
from tuner.jobs.models.model_loading import ModelQuery
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.jobs.spec import TuneSpec
from tuner.packs import offers
from tuner.queries.jobs import list_jobs
from tuner.service import retention
from tuner.service.builds.archives import pack
from tuner.service.retention import (
    RetentionTask,
    collect_cache,
    do,
    forget_silent,
    list_purges,
    rotate_logs,
)
from tuner.settings.retention import RetentionSettings
from tuner.workers.confinement.sandbox_paths import Access
from tuner.workers.factory import fresh_worker

HOURS, DAYS = 3600.0, 24 * 3600.0


def remove_unused(context: Context) -> None:
    """Do all that the service does every hour, without a pause."""
    for work in (retention.remove_files, collect_cache, forget_silent, rotate_logs):
        work(context)
    for step in list_purges(context):
        while do(step, context):
            pass


def age(path: Path, secs: float) -> Path:
    """Set the time of a file back."""
    at = time.time() - secs
    os.utime(path, (at, at))
    return path


def make_file(path: Path, age_secs: float, content: bytes = b"x") -> Path:
    """Write a file of an age."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return age(path, age_secs)


def delete(context: Context, job_id: int, secs_ago: float) -> None:
    """Delete a job at a time in the past."""
    with context.sessions.begin() as session:
        jobs.set_state(session, job_id, "cancelled")
        submissions.hide(session, job_id)
    with context.sessions.begin() as session:
        at = now() - timedelta(seconds=secs_ago)
        session.execute(update(Job).where(Job.id == job_id).values(updated=at))


def make_job(context: Context, digit: str, *, deleted_secs_ago: float | None) -> list[Path]:
    """Submit a job with an upload and a library; returns their files, which are two days old."""
    sha256 = digit * 64
    job_id = submit(
        context, TuneRequest((ModelRequest(f"upload:{sha256}.onnx"),), TuneSpec(trials=4))
    )
    archive = f"{digit}.tar.gz"
    with context.sessions.begin() as session:
        build = builds.request_build(session, job_id)
        builds.set_build(session, build.id, "done", archive=archive)
        jobs.set_state(session, job_id, "cancelled")
    if deleted_secs_ago is not None:
        delete(context, job_id, deleted_secs_ago)
    folder = context.settings.data_dir
    return [
        make_file(folder / "uploads" / f"{sha256}.onnx", 2 * DAYS),
        make_file(folder / "archives" / archive, 2 * DAYS),
    ]


def test_files_of_deleted_jobs_are_removed(context: Context) -> None:
    """Files that a job names are kept, and young ones, whose job may not be stored yet."""
    folder = context.settings.data_dir
    kept = make_job(context, "a", deleted_secs_ago=None)
    kept += make_job(context, "e", deleted_secs_ago=0.5 * HOURS)
    gone = make_job(context, "b", deleted_secs_ago=2 * HOURS)
    kept.append(make_file(folder / "uploads" / f"{'c' * 64}.onnx", 0.5 * HOURS))
    kept.append(make_file(folder / "uploads" / ".upload-1", 0.5 * DAYS))
    kept.append(make_file(folder / "tmp" / "spool", 0.5 * DAYS))
    gone.append(make_file(folder / "archives" / ".d.tar.gz.x1", 2 * DAYS))
    gone.append(make_file(folder / "uploads" / ".upload-2", 2 * DAYS))
    gone.append(make_file(folder / "tmp" / "left" / "spool", 2 * DAYS))
    age(folder / "tmp" / "left", 2 * DAYS)
    gone.append(make_file(folder / "scratch" / "tmpabc" / "lib.so", 2 * DAYS))
    age(folder / "scratch" / "tmpabc", 2 * DAYS)

    remove_unused(context)

    assert [path for path in kept if not path.exists()] == []
    assert [path for path in gone if path.exists()] == []


def test_files_of_packs_that_are_no_longer_offered_are_removed(context: Context) -> None:
    """Those of open packs stay."""
    folder = context.settings.data_dir / offers.FOLDER
    with context.sessions.begin() as session:
        for name, ended in (("open", None), ("over", now())):
            row = OfferedPack(
                pack=name, sha256="", n_bytes=1, capabilities=[], minutes=1.0, ended=ended
            )
            offered_packs.offer(session, row)
    kept, gone = (
        [make_file(folder / f"{name}.{suffix}", 2 * DAYS) for suffix in ("pyz", "json")]
        for name in ("open", "over")
    )

    remove_unused(context)

    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in gone)


def test_a_removal_that_was_killed_loses_nothing(context: Context) -> None:
    """A file that was set aside and that a job names is put back; another is removed."""
    folder = context.settings.data_dir / "uploads"
    (named, _), (unnamed, _) = (
        make_job(context, digit, deleted_secs_ago=secs)
        for digit, secs in (("a", None), ("b", 2 * HOURS))
    )
    for path in (named, unnamed):
        path.rename(folder / f".removing-{path.name}")

    remove_unused(context)

    assert list(folder.iterdir()) == [named]


def test_an_upload_that_is_stored_again_in_this_moment_stays(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request stores the same model between the look at the file and its removal."""
    upload, _ = make_job(context, "b", deleted_secs_ago=2 * HOURS)
    rename = Path.rename

    def store_first(path: Path, target: Path) -> Path:
        if path == upload and not target.name.endswith(".tar.gz"):
            make_file(path, 0.0, b"again")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", store_first)
    remove_unused(context)

    assert upload.read_bytes() == b"again"
    assert [path.name for path in upload.parent.iterdir()] == [upload.name]


MARK = b"MARK OF THE CONFIDENTIAL WEIGHTS"


def write_model(path: Path, mark: bytes) -> Path:
    """Write a network whose weights hold a mark, and do not compress."""
    rng = np.random.default_rng(len(path.name) + mark[0])
    weights = rng.standard_normal((64, 64)).astype(np.float32)
    weights.reshape(-1)[: len(mark) // 4] = np.frombuffer(mark, np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
        [numpy_helper.from_array(weights, "w")],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def bring(context: Context, model: Path, name: str, workload: str, seed: int = 0) -> int:
    """Bring a job with everything that its model leaves in the data directory; return its id."""
    settings, data_dir = context.settings, context.settings.data_dir
    digest = model_cache.content_of(model)
    assert digest is not None
    upload = data_dir / "uploads" / f"{digest}.onnx"
    upload.parent.mkdir(exist_ok=True)
    upload.write_bytes(model.read_bytes())
    models = (ModelRequest(f"upload:{digest}.onnx", name=name),)
    job_id = submit(context, TuneRequest(models, TuneSpec(trials=4, seed=seed)))
    cache = open_local(settings)
    with fresh_worker(settings, access=Access(files=(upload,))) as worker:
        query = ModelQuery(str(upload), {}, None)
        loaded = model_cache.load(cache, worker, data_dir / "models", query)
    subgraph = cache.get_or_make(Key("subgraph", {"workload": workload}), lambda _folder: {})
    key = Key("library", {"network": loaded.sha256})

    def make(folder: Path) -> dict[str, object]:
        (folder / "weights.bin").write_bytes(Path(loaded.file.path).read_bytes())
        return {}

    library = cache.get_or_make(key, make)
    with subgraph.entry, library.entry, cache.new_folder() as folder:
        library.entry.write_into(folder)
        archive = pack(folder, key.digest, data_dir)
    make_file(data_dir / "references" / "t" / f"{workload}-whole-3.npz", 0.0, name.encode())
    with context.sessions.begin() as session:
        target_id = targets.ensure_target(session, "llvm", {"cpu": "this"}).id
        network = networks.ensure_network(session, loaded.sha256, name, {})
        new = tasks.NewWorkload(hash=workload, engine="toy", ir=b"", flop=1.0, name="matmul")
        networks.record_extraction(session, network.id, target_id, [(new, 1)], 1, [])
        submissions.assign(session, job_id, network.id, target_id, {})
        manifest = {"subgraphs": [{"entry": subgraph.entry.digest}], "model": name}
        libraries.ensure_library(
            session,
            libraries.NewLibrary(
                key=key.digest, target_id=target_id, manifest=manifest, path="",
                network_id=network.id,
            ),
        )  # fmt: skip
        build = builds.request_build(session, job_id)
        builds.set_build(
            session, build.id, "done", library_key=key.digest, archive=archive.name, n_bytes=1
        )
        jobs.set_state(session, job_id, "done")
    return job_id


def files(context: Context) -> dict[Path, bytes]:
    """Return every file below the data directory but the database, unpacked, by its path."""
    data_dir = context.settings.data_dir
    local = open_local(context.settings).local
    contents = {
        path: path.read_bytes()
        for path in data_dir.rglob("*")
        if path.is_file() and not path.name.startswith("tuner.db") and "source" not in path.parts
    }
    for entry in index.entries(local):
        header = index.header_of(entry)
        assert header is not None
        held = local.find(header.key, used=False)
        assert held is not None
        with held:
            contents[entry.path] += b"".join(held.read(name) for name in header.files)
            contents[entry.path] += str(header).encode()
    return contents


@pytest.mark.tvm
def test_nothing_of_a_deleted_job_is_left_and_what_others_share_stays(context: Context) -> None:
    """The upload, the model, the library, its objects, the archive and the expected outputs go.

    A second job of the same model keeps all of them, and a third one those of its own.
    """
    data_dir = context.settings.data_dir
    source = write_model(data_dir / "source" / "first.onnx", MARK)
    other = write_model(data_dir / "source" / "other.onnx", b"OTHER WEIGHTS" + b"!" * 3)
    first = bring(context, source, "confidential", "w1")
    shared = bring(context, source, "confidential twin", "w1", seed=1)
    kept = bring(context, other, "public", "w2")
    all_files = files(context)
    marked = {path for path, content in all_files.items() if MARK in content}
    assert {path.parts[len(data_dir.parts)] for path in marked} == {"uploads", "models", "cache"}

    def after(*deleted: int) -> dict[Path, bytes]:
        for job_id in deleted:
            delete(context, job_id, 2 * HOURS)
        for path in files(context):
            age(path, 2 * HOURS)
        remove_unused(context)
        return files(context)

    assert first != shared
    assert after(first).keys() == all_files.keys()
    left = after(shared)

    assert {path for path, content in left.items() if MARK in content} == set()
    assert not [path for path, content in left.items() if b"confidential" in content]
    names = {path.parts[len(data_dir.parts)] for path in left}
    assert names == {"uploads", "models", "cache", "archives", "references", "logs"}
    gone = all_files.keys() - left.keys()
    assert len(gone) == 7  # an upload, a model, an archive, a reference and three entries
    assert not [path for path in gone if b"public" in all_files[path]]
    with context.readers() as session:
        assert [job.id for job in list_jobs(session)] == [kept]


def test_rows_of_a_job_that_was_deleted_a_month_ago_are_purged(context: Context) -> None:
    """Its name and request go; a job that was submitted again in between stays as it is."""
    request = TuneRequest((ModelRequest("zoo:mlp"),), TuneSpec(trials=4))
    job_id = submit(context, request)
    with context.sessions.begin() as session:
        target_id = targets.ensure_target(session, "llvm", {}).id
        network = networks.ensure_network(session, "5ecret" * 4, "secret", {})
        submissions.assign(session, job_id, network.id, target_id, {})
    delete(context, job_id, 29 * DAYS)
    remove_unused(context)
    with context.readers() as session:
        assert session.get_one(Job, job_id).request is not None

    delete(context, job_id, 31 * DAYS)
    remove_unused(context)

    with context.readers() as session:
        job = session.get_one(Job, job_id)
        assert (job.name, job.request, job.hidden) == (None, None, True)
        assert session.get_one(Network, job.network_id).name == "5ecret5ecret"
    again = submit(context, request)
    assert again != job_id


def test_the_cache_is_collected_within_its_size(context: Context) -> None:
    """The least recently used entries go until the rest is small enough."""
    limits = RetentionSettings(cache_max_size=100_000)
    context = replace(context, settings=replace(context.settings, retention=limits))
    cache, rng = open_local(context.settings), np.random.default_rng(0)
    keys = [Key("subgraph", {"number": number}) for number in range(4)]
    for number, key in enumerate(keys):

        def make(folder: Path) -> dict[str, object]:
            (folder / "code.o").write_bytes(rng.bytes(40_000))
            return {}

        with cache.get_or_make(key, make).entry:
            pass
        age(cache.local.path_of("subgraph", key.digest), (4 - number) * HOURS)

    remove_unused(context)

    left = {entry.digest for entry in index.entries(cache.local)}
    assert left == {key.digest for key in keys[2:]}


def test_workers_that_were_silent_for_a_week_are_forgotten(context: Context) -> None:
    """A worker that was silent for less stays visible."""
    for name, days in (("old", 8), ("silent", 6), ("alive", 0)):
        with context.sessions.begin() as session:
            report = workers.WorkerReport(name=name, host="h", pid=1, role="standby", activity="")
            workers.report(session, report)
            last_seen = now() - timedelta(days=days)
            session.execute(update(Worker).where(Worker.name == name).values(heartbeat=last_seen))

    remove_unused(context)

    with context.sessions() as session:
        assert {worker.name for worker in workers.list_workers(session)} == {"silent", "alive"}


def test_retention_runs_at_once_and_not_again_within_the_hour(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that appear after the first pass stay until the next; logs are rotated in between."""
    monkeypatch.setattr(retention, "_LOG_INTERVAL_SECS", 0.02)
    first, *_ = make_job(context, "a", deleted_secs_ago=2 * HOURS)
    log = make_file(context.settings.data_dir / "logs" / "builder.log", 0.0)

    async def run_briefly() -> None:
        task = asyncio.create_task(RetentionTask(context, CpuGate()).run())
        while first.exists():
            await asyncio.sleep(0.01)
        make_file(first, 2 * DAYS)
        make_file(log, 0.0, b"y" * (context.settings.retention.log_max_size + 1))
        while log.stat().st_size:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(asyncio.wait_for(run_briefly(), 20.0))

    assert first.exists()
    assert log.with_name("builder.log.1").is_file()


def test_retention_outlives_a_failure(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that refuses once is tried again; a lost database ends the task."""
    errors: list[Exception] = [LeaseLost("x"), OSError("no more files")]
    monkeypatch.setattr(retention, "_RETENTION_INTERVAL_SECS", 0.0)

    def fail(_context: Context) -> None:
        raise errors.pop()

    monkeypatch.setattr(retention, "remove_files", fail)

    with pytest.raises(LeaseLost):
        asyncio.run(RetentionTask(context, CpuGate()).run())

    assert not errors
