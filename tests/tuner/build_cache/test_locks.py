"""Locks are of one owner, and of nobody once it is gone."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli import ROOT
from tuner.build_cache.locks import Locks
from tuner.build_cache.process_identity import Owner, owner_of_tag, this_process

STALE_SECS = 0.25


@pytest.fixture
def locks(tmp_path: Path) -> Locks:
    """Locks whose owners are given up soon."""
    return Locks(tmp_path / "locks", tmp_path / "scratch", STALE_SECS)


def forge(locks: Locks, tmp_path: Path, owner: Owner, token: str = "theirs") -> Path:
    """Leave the lock of another process."""
    mine = locks.take("key")
    assert mine is not None
    mine.release()
    path = tmp_path / "locks" / "key.lock"
    path.write_text(f"{0:020d}\n" + json.dumps({"token": token, **asdict(owner)}))
    return path


def elsewhere(**changes: Any) -> Owner:
    """A process of which nobody here can know whether it lives."""
    return replace(this_process(), **{"host": "far", "boot": "ab" * 8, **changes})


def test_a_lock_names_its_owner(locks: Locks, tmp_path: Path) -> None:
    """It is complete from its first instant, and gone when it is released."""
    lock = locks.take("key")
    assert lock is not None

    count, _, text = lock.path.read_text().partition("\n")

    assert (int(count), json.loads(text)["pid"]) == (0, os.getpid())
    assert locks.is_held("key")
    lock.release()
    assert not locks.is_held("key")
    assert list((tmp_path / "scratch").iterdir()) == []


def test_the_lock_of_a_dead_process_is_taken_over_at_once(locks: Locks, tmp_path: Path) -> None:
    """Its id may be unused, or another process' by now."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for owner in (replace(this_process(), pid=dead.pid), replace(this_process(), started="1")):
        forge(locks, tmp_path, owner)

        assert not locks.is_held("key")
        lock = locks.take("key")
        assert lock is not None
        lock.release()


def test_a_process_that_is_dead_and_not_collected_holds_nothing(
    locks: Locks, tmp_path: Path
) -> None:
    """Its parent may take its time."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = replace(this_process(), pid=child.pid, started=_started(child.pid))
    assert not owner.is_gone
    child.kill()
    while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.005)

    assert owner.is_gone
    forge(locks, tmp_path, owner)
    assert not locks.is_held("key")
    child.communicate()


def test_an_owner_elsewhere_is_dead_when_it_falls_silent(locks: Locks, tmp_path: Path) -> None:
    """By the clock of whoever waits: no other one is read."""
    path = forge(locks, tmp_path, elsewhere())
    os.utime(path, (0, 0))
    assert locks.is_held("key")
    assert locks.take("key") is None

    time.sleep(STALE_SECS * 1.5)

    lock = locks.take("key")
    assert lock is not None
    assert "theirs" not in path.read_text()


def test_an_owner_elsewhere_lives_while_it_counts(locks: Locks, tmp_path: Path) -> None:
    """However long it takes, and whatever the time of the file is."""
    path = forge(locks, tmp_path, elsewhere())
    for number in range(1, 6):
        time.sleep(STALE_SECS / 2)
        with path.open("r+b") as stream:
            stream.write(b"%020d" % number)
        os.utime(path, (4e9, 4e9))
        assert locks.is_held("key")


@pytest.mark.parametrize("content", ["", "{", "0\nnull", "\xff", "0\n{}"])
def test_a_lock_that_makes_no_sense_is_no_obstacle(
    locks: Locks, tmp_path: Path, content: str
) -> None:
    """Somebody may be writing it; later nobody is."""
    path = forge(locks, tmp_path, elsewhere())
    path.write_text(content)
    assert locks.take("key") is None

    time.sleep(STALE_SECS * 1.5)

    assert locks.take("key") is not None


def holding(tmp_path: Path, before: str = "") -> subprocess.Popen[bytes]:
    """Start a process that holds the lock until it reads a line."""
    program = (
        "import pathlib\n"
        "from tuner.library import locks\n"
        f"{before}\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "lock = locks.Locks(folder / 'locks', folder / 'scratch').take('key')\n"
        "print('held', flush=True)\n"
        "input()\n"
        "lock.release()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_live_owner_is_never_taken_for_dead(locks: Locks, tmp_path: Path) -> None:
    """However long it works: it counts."""
    with holding(tmp_path, f"locks._BEAT_SECS = {STALE_SECS / 8}") as owner:
        deadline = time.monotonic() + 3 * STALE_SECS
        while time.monotonic() < deadline:
            assert locks.is_held("key")
            time.sleep(0.02)
        counted = (tmp_path / "locks" / "key.lock").read_text().partition("\n")[0]
        owner.communicate(b"\n")

    assert int(counted) > 3


def test_a_stopped_owner_is_taken_over_and_does_not_harm_its_successor(
    locks: Locks, tmp_path: Path
) -> None:
    """One who went to the background by Ctrl-Z keeps the others waiting for a while only."""
    with holding(tmp_path) as owner:
        owner.send_signal(signal.SIGSTOP)
        while (lock := locks.take("key")) is None:
            time.sleep(0.02)
        owner.send_signal(signal.SIGCONT)
        owner.communicate(b"\n")

    assert owner.returncode == 0
    assert locks.is_held("key")
    lock.release()


def test_a_lock_works_where_there_are_no_hard_links(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on some network file systems."""

    def refuse(_source: Path, _target: Path) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    lock = locks.take("key")
    assert lock is not None
    assert locks.take("key") is None

    lock.release()

    assert locks.take("key") is not None


def test_a_lock_works_where_the_kernel_has_none(
    locks: Locks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the process is asked for, and its silence tells elsewhere."""

    def refuse(_descriptor: int, _kind: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = locks.take("key")
    assert lock is not None
    assert locks.take("key") is None
    lock.release()

    forge(locks, tmp_path, replace(this_process(), started="1"))
    assert locks.take("key") is not None


def test_a_tag_names_a_process() -> None:
    """And nothing else is read as one."""
    owner = this_process()

    assert owner_of_tag(owner.tag) == replace(owner, host="")
    assert owner.is_known_here
    assert not owner.is_gone
    for text in ("", "a.b.c", "a.b.c.d", "a.b.1.2.3"):
        assert owner_of_tag(text) is None


def _started(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
