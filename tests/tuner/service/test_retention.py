"""Removal of files and rows that no job needs any more."""

import asyncio
import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from records import builds, jobs, submissions, workers
from records.errors import LeaseLost
from records.models import now
from records.service_models import Worker
from tests.tuner.service.test_job_loader import submit
from tuner.context import Context
from tuner.devices.cpu_gate import CpuGate
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.jobs.spec import TuneSpec
from tuner.service import retention
from tuner.service.retention import RetentionTask, remove_unused

DAYS = 24 * 3600.0


def make_file(path: Path, age_secs: float) -> Path:
    """Write a file of an age."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    at = time.time() - age_secs
    os.utime(path, (at, at))
    return path


def make_job(context: Context, digit: str, *, deleted: bool) -> list[Path]:
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
        if deleted:
            submissions.hide(session, job_id)
    folder = context.settings.data_dir
    return [
        make_file(folder / "uploads" / f"{sha256}.onnx", 2 * DAYS),
        make_file(folder / "archives" / archive, 2 * DAYS),
    ]


def test_files_of_deleted_jobs_are_removed(context: Context) -> None:
    """Files that a visible job names are kept, and young ones, whose job may not be stored yet."""
    folder = context.settings.data_dir
    kept = make_job(context, "a", deleted=False)
    gone = make_job(context, "b", deleted=True)
    young = make_file(folder / "uploads" / f"{'c' * 64}.onnx", 0.5 * DAYS)
    torn = make_file(folder / "archives" / ".d.tar.gz.x1", 2 * DAYS)

    remove_unused(context)

    assert [path.exists() for path in (*kept, young)] == [True, True, True]
    assert [path.exists() for path in (*gone, torn)] == [False, False, False]


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


def test_retention_runs_at_once_and_not_again_within_the_hour(context: Context) -> None:
    """Files that appear after the first pass stay until the next."""
    first, *_ = make_job(context, "a", deleted=True)

    async def run_briefly() -> None:
        task = asyncio.create_task(RetentionTask(context, CpuGate()).run())
        while first.exists():
            await asyncio.sleep(0.01)
        make_file(first, 2 * DAYS)
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(asyncio.wait_for(run_briefly(), 20.0))

    assert first.exists()


def test_retention_outlives_a_failure(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that refuses once is tried again; a lost database ends the task."""
    errors: list[Exception] = [LeaseLost("x"), OSError("no more files")]
    monkeypatch.setattr(retention, "_RETENTION_INTERVAL_SECS", 0.0)

    def fail(_context: Context) -> None:
        raise errors.pop()

    monkeypatch.setattr(retention, "remove_unused", fail)

    with pytest.raises(LeaseLost):
        asyncio.run(RetentionTask(context, CpuGate()).run())

    assert not errors
