"""Locks of keys: one holder per key on a host, and none that outlives its process."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.cli import ROOT
from tests.tuner.build_cache.entries import key, made, put
from tests.tuner.build_cache.privileges import without_privilege
from tuner.build_cache import gc as cache_gc
from tuner.build_cache.cache import Cache
from tuner.build_cache.locks import KeyLock
from tuner.files.process_tags import has_ended, process_tag


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Path of a lock whose folder does not exist yet."""
    return tmp_path / "locks" / "key.lock"


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks."""

    def refuse(_descriptor: int, _kind: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)


def holder(path: Path) -> "subprocess.Popen[bytes]":
    """Start a process that holds a lock until it reads a line."""
    program = (
        "import pathlib, sys\n"
        "from tuner.build_cache.locks import KeyLock\n"
        "lock = KeyLock(pathlib.Path(sys.argv[1]))\n"
        "print(lock.try_acquire(), flush=True)\n"
        "input()\n"
        "lock.release()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"True\n"
    return process


def test_lock_excludes_others_until_it_is_released(path: Path) -> None:
    """A released lock leaves no file, and releasing it again does nothing."""
    first, second = KeyLock(path), KeyLock(path)
    assert first.try_acquire()
    assert not second.try_acquire()

    first.release()
    first.release()

    assert not path.exists()
    assert second.try_acquire()
    assert not first.try_acquire()


def test_lock_of_a_killed_process_is_free_at_once(path: Path) -> None:
    """Neither acquiring it nor waiting for it takes long."""
    with holder(path) as process:
        assert not KeyLock(path).try_acquire()
        process.kill()
        process.wait()

        KeyLock(path).wait()
        assert KeyLock(path).try_acquire()


def test_process_that_was_killed_and_not_collected_holds_nothing(path: Path) -> None:
    """The kernel releases the lock when the process dies, not when its parent notices."""
    with holder(path) as process:
        tag = f"{process_tag().rsplit('.', 2)[0]}.{process.pid}.{_started(process.pid)}"
        assert has_ended(tag) is False
        process.kill()
        while _state(process.pid) != "Z":
            time.sleep(0.005)

        assert has_ended(tag) is True
        assert KeyLock(path).try_acquire()


def test_stopped_process_keeps_its_lock(path: Path) -> None:
    """A waiter goes on as soon as the process continues and releases the lock."""
    waited = threading.Event()

    def wait() -> None:
        KeyLock(path).wait()
        waited.set()

    with holder(path) as process:
        process.send_signal(signal.SIGSTOP)
        waiter = threading.Thread(target=wait)
        waiter.start()
        assert not waited.wait(0.3)
        process.send_signal(signal.SIGCONT)
        process.communicate(b"\n")
        waiter.join(10.0)

    assert waited.is_set()
    assert process.returncode == 0


def test_lock_without_references_is_released(path: Path) -> None:
    """A thread that forgets its lock does not keep others waiting."""
    lock: KeyLock | None = KeyLock(path)
    assert lock is not None
    assert lock.try_acquire()
    del lock

    assert KeyLock(path).try_acquire()


def test_lock_acquired_while_its_file_is_removed_excludes_others(path: Path) -> None:
    """Many threads that acquire and release one lock never hold it at the same time."""
    inside, overlaps = threading.Lock(), []

    def work() -> None:
        for _ in range(30):
            lock = KeyLock(path)
            while not lock.try_acquire():
                time.sleep(0.0001)
            if not inside.acquire(blocking=False):
                overlaps.append(1)
            else:
                inside.release()
            lock.release()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert overlaps == []
    assert not path.exists()


def test_two_processes_that_need_one_key_make_it_once(tmp_path: Path) -> None:
    """The second process waits for the first, and has its entry."""
    program = (
        "import pathlib, sys, time\n"
        "from tests.tuner.build_cache.entries import key\n"
        "from tuner.build_cache.cache import Cache\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "def make(_):\n"
        "    (folder / sys.argv[2]).touch()\n"
        "    time.sleep(0.5)\n"
        "    return {'maker': sys.argv[2]}\n"
        "cache = Cache(folder / 'cache')\n"
        "print('ready', flush=True)\n"
        "input()\n"
        "print(cache.get_or_make(key(), make).entry.info['maker'])\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), name],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("first", "second")
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    makers = [process.communicate(timeout=60)[0].strip() for process in processes]

    (marker,) = (path.name for path in tmp_path.iterdir() if path.name in ("first", "second"))
    assert makers == [marker, marker]


@pytest.mark.usefixtures("no_flock")
def test_file_system_without_locks_costs_double_work_only(
    cache: Cache, warnings: list[str]
) -> None:
    """Two makers of one key both get its lock, both store their entry, and no file is left."""
    first, second = cache.try_lock(key()), cache.try_lock(key())
    assert first is not None
    assert second is not None
    for lock in (first, second):
        with cache.new_folder() as folder:
            (folder / "code.o").write_bytes(b"code")
            lock.keep(folder, {}).close()

    entry = cache.find(key())
    assert entry is not None
    assert entry.read("code.o") == b"code"
    assert warnings == []
    assert list(cache.local.locks.iterdir()) == []
    entry.close()
    assert cache_gc.collect(cache.local, max_bytes=0).n_left == 0


def test_lock_folder_that_cannot_be_written_costs_double_work_only(
    cache: Cache, warnings: list[str]
) -> None:
    """Entries are made and kept without a lock."""
    put(cache, key(0))
    cache.local.locks.chmod(0o555)
    try:
        with without_privilege():
            first, second = cache.try_lock(key(1)), cache.try_lock(key(1))
            entry = made(cache, key(2))
    finally:
        cache.local.locks.chmod(0o755)

    assert first is not None
    assert second is not None
    assert entry.files
    assert cache.find(key(2)) is not None
    assert warnings == []


def test_tag_names_a_process() -> None:
    """A tag of another host, or a text that is not a tag, says nothing about a process."""
    boot, namespace, pid, started = process_tag().split(".")

    assert has_ended(process_tag()) is False
    assert has_ended(f"{boot}.{namespace}.{pid}.1{started}") is True
    assert has_ended(f"{'ab' * 8}.{namespace}.{pid}.{started}") is None
    assert has_ended(f"{boot}.1{namespace}.{pid}.{started}") is None
    for text in ("", "a.b.c", "a.b.c.d", "a.b.1.2.3", "..1."):
        assert has_ended(text) is None


def _started(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
