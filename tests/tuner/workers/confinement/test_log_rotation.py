"""Logs of worker processes are rotated while processes append to them."""

import os
from pathlib import Path

from tuner.workers.confinement.log_rotation import N_KEPT, rotate


def test_a_long_log_is_moved_and_its_writers_go_on(tmp_path: Path) -> None:
    """The file that a process has open is the one that it goes on with."""
    log = tmp_path / "builder.log"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, b"a" * 60 + b"b" * 50)

    assert not rotate(log, 110)
    assert rotate(log, 100)
    os.write(descriptor, b"later")
    os.close(descriptor)

    assert log.read_bytes() == b"later"
    assert (tmp_path / "builder.log.1").read_bytes() == b"a" * 50 + b"b" * 50


def test_a_few_older_logs_are_kept(tmp_path: Path) -> None:
    """The oldest one goes."""
    log = tmp_path / "builder.log"
    for number in range(N_KEPT + 3):
        log.write_text(f"{number}" * 10)
        assert rotate(log, 5)

    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["builder.log", *(f"builder.log.{i}" for i in range(1, N_KEPT + 1))]
    assert (tmp_path / "builder.log.1").read_text() == "6" * 5
    assert (tmp_path / f"builder.log.{N_KEPT}").read_text() == "3" * 5


def test_a_missing_log_is_left_alone(tmp_path: Path) -> None:
    """A pool that has never started has no log."""
    assert not rotate(tmp_path / "builder.log", 5)
    assert list(tmp_path.iterdir()) == []
