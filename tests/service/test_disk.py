"""A disk that fills up under a worker: nothing is lost, and work continues with new room."""

import contextlib
import errno
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from records.models import MeasureRecord
from tests.service.rig import Rig, rig
from tests.waiting import wait_for
from tuner.files.disk_floor import WAITING

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")

_TRIALS = 48
FULL = os.strerror(errno.ENOSPC)


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


@pytest.mark.slow("waits for a full disk")
@pytest.mark.parametrize("floor", ["", "0"], ids=["floor", "no floor"])
def test_a_job_waits_while_the_data_directory_is_full(
    postgres_url: str, disk: Path, tmp_path: Path, floor: str
) -> None:
    """It says what it waits for, no candidate fails, and it goes on by itself with new room."""
    with rig(postgres_url, tmp_path, run_secs=0.05) as opened:
        worker = opened.start("disk", TUNER_MIN_FREE_DISK=floor)
        job = opened.submit(trials=_TRIALS)
        wait_for(lambda: opened.n_trials() >= 8, 120.0)
        ballast = fill(disk)
        wait_for(lambda: opened.phase(job) == WAITING, 60.0)
        n_before = opened.n_trials()
        second = opened.submit("zoo:mlp?batch=2", trials=8)
        time.sleep(3.0)

        assert 8 <= n_before < _TRIALS
        assert opened.n_trials() == n_before
        assert [opened.state(each) for each in (job, second)] == ["running", "queued"]
        assert worker.poll() is None

        ballast.unlink()
        wait_for(lambda: opened.state(second) == "done", 240.0)
        wait_for(lambda: opened.state(job) == "done", 240.0)
        opened.check_counts(job)
        assert opened.job(job).reached_trials == _TRIALS
        assert not [text for text in opened.all(MeasureRecord.error_text) if text and FULL in text]


@pytest.mark.slow("builds on a full disk for 15 s")
def test_a_library_that_does_not_fit_is_a_failed_build(
    postgres_url: str, disk: Path, tmp_path: Path
) -> None:
    """The build says why it failed, leaves nothing behind, and succeeds with new room.

    With a floor of free space it waits instead.
    """
    with rig(postgres_url, tmp_path) as opened:
        opened.start("disk", TUNER_MIN_FREE_DISK="0")
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


@pytest.mark.in_ci
@pytest.mark.slow("waits for a full disk")
def test_a_job_continues_when_the_disk_of_its_database_has_room_again(
    disk: Path, tmp_path: Path
) -> None:
    """The worker stands by and tries again, as without a database."""
    with rig(f"sqlite:///{disk / 'tuner.db'}", tmp_path, run_secs=0.05) as opened:
        worker = opened.start("data", TUNER_MIN_FREE_DISK="0")
        job = opened.submit(trials=_TRIALS)
        wait_for(lambda: opened.n_trials() >= 8)
        ballast = fill(disk)
        wait_for(lambda: "standing by again: database or disk is full" in messages(opened))
        assert worker.poll() is None
        ballast.unlink()
        wait_for(lambda: opened.state(job) == "done", 60.0)
        check_whole(opened, job)
