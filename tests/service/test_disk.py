"""A disk that fills up under a worker: nothing is lost, and work continues with new room."""

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from records import submissions
from records.models import MeasureRecord
from tests.service.rig import Rig, rig, wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")

_TRIALS = 48


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    if subprocess.run(["mount", *options], check=False, capture_output=True).returncode:
        pytest.skip("this machine does not allow mounting")
    yield folder
    # Lazily: a worker that was killed may have files open for a moment.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, name: str = "ballast") -> Path:
    """Fill a disk to its last byte, and return the file that fills it."""
    ballast = disk / name
    with ballast.open("wb", buffering=0) as stream:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    stream.write(b"x" * size)
    return ballast


def messages(opened: Rig) -> str:
    """Return the messages that the worker logged."""
    return "\n".join(line["message"] for line in opened.logs())


def check_whole(opened: Rig, job: int) -> None:
    """Check that each trial of the job counts once, and that none failed because of the disk."""
    assert len(opened.all(MeasureRecord.id)) == _TRIALS
    opened.check_counts(job)
    errors = [text for text in opened.all(MeasureRecord.error_text) if text]
    assert not [text for text in errors if os.strerror(errno.ENOSPC) in text]


@pytest.mark.parametrize(
    "is_toy",
    [
        True,
        pytest.param(False, marks=[pytest.mark.slow("minutes of real tuning"), pytest.mark.tvm]),
    ],
    ids=["toy", "relax"],
)
@pytest.mark.slow("waits for a full disk")
def test_a_job_fails_when_the_data_directory_is_full_and_is_resumed(
    postgres_url: str, disk: Path, tmp_path: Path, is_toy: bool
) -> None:
    """The job fails without a failed candidate; the worker lives, and the records stay."""
    with rig(postgres_url, tmp_path, run_secs=0.05, is_toy=is_toy) as opened:
        worker = opened.start("disk")
        job = opened.submit(trials=_TRIALS)
        wait_for(lambda: opened.n_trials() >= 8, 120.0)
        ballast = fill(disk)
        wait_for(lambda: opened.state(job) == "failed")
        n_before = opened.n_trials()

        assert 8 <= n_before < _TRIALS
        message = opened.job(job).message or ""
        assert message.startswith(f"cannot measure: {os.strerror(errno.ENOSPC)}; make room")
        assert worker.poll() is None

        ballast.unlink()
        with opened.sessions.begin() as session:
            assert submissions.resume(session, job)
        wait_for(lambda: opened.state(job) == "done", 240.0)
        check_whole(opened, job)


@pytest.mark.slow("builds on a full disk for 15 s")
def test_a_library_that_does_not_fit_is_a_failed_build(
    postgres_url: str, disk: Path, tmp_path: Path
) -> None:
    """The build says why it failed, leaves nothing behind, and succeeds with new room."""
    with rig(postgres_url, tmp_path) as opened:
        opened.start("disk")
        job = opened.submit(trials=8)
        wait_for(lambda: opened.state(job) == "done")
        ballast = fill(disk)

        failed = opened.build(job)
        ballast.unlink()
        built = opened.build(job)

    assert failed.state == "failed"
    assert os.strerror(errno.ENOSPC) in (failed.message or ""), failed.message
    assert str(tmp_path) not in (failed.message or "")
    assert built.state == "done", built.message
    assert [path.name for path in (disk / "archives").iterdir()] == [built.archive]
    kept = [path.name for path in (disk / "cache").glob("*/library/*/*")]
    assert kept == [built.library_key]


@pytest.mark.guards_data
@pytest.mark.slow("waits for a full disk")
def test_a_job_continues_when_the_disk_of_its_database_has_room_again(
    disk: Path, tmp_path: Path
) -> None:
    """The worker stands by and tries again, as without a database."""
    with rig(f"sqlite:///{disk / 'tuner.db'}", tmp_path, run_secs=0.05) as opened:
        worker = opened.start("data")
        job = opened.submit(trials=_TRIALS)
        wait_for(lambda: opened.n_trials() >= 8)
        ballast = fill(disk)
        wait_for(lambda: "standing by again: database or disk is full" in messages(opened))
        assert worker.poll() is None
        ballast.unlink()
        wait_for(lambda: opened.state(job) == "done", 60.0)
        check_whole(opened, job)
