"""kill -9 at any instant leaves no broken entry, and no lock that others wait for."""

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.build_cache.entries import WEIGHTS, key, names
from tuner.build_cache import gc as cache_gc
from tuner.build_cache import index
from tuner.build_cache.cache import Cache

# Later versions of Python warn of forks in processes with threads; the children here take no lock
# that a thread may hold.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

_N_KEYS = 5
_CODE_BYTES = 900_000
# Longest time that a child works before it is killed.
_MAX_WORK_SECS = 0.03


def content(number: int) -> dict[str, bytes]:
    """Return files that differ between entries and are large enough to take a while to write."""
    large = WEIGHTS[number:] + WEIGHTS[:number]
    return {"code.o": large[:_CODE_BYTES], "weights.bin": large}


def work(root: Path) -> None:
    """Make, read and remove entries without end."""
    cache = Cache(root)
    rng = random.Random(os.getpid())
    while True:
        number = rng.randrange(_N_KEYS)

        def make(folder: Path, number: int = number) -> dict[str, Any]:
            for name, data in content(number).items():
                (folder / name).write_bytes(data)
            return {"number": number}

        with cache.get_or_make(key(number), make).entry as entry:
            entry.read("weights.bin")
        if rng.random() < 0.5:
            cache_gc.collect(cache.local, max_bytes=2 << 20)


def start(root: Path) -> int:
    """Fork a child that works; it starts within a millisecond and is killed for real."""
    pid = os.fork()
    if pid == 0:
        try:
            work(root)
        finally:
            os._exit(1)
    return pid


def kill(pid: int) -> None:
    """Kill a child, and check that it had not ended before."""
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def whole_entries(cache: Cache) -> int:
    """Read every entry, and return their number; a damaged one fails the test."""
    n_found = 0
    for number in range(_N_KEYS):
        entry = cache.find(key(number))
        if entry is None:
            continue
        n_found += 1
        with entry:
            assert entry.info == {"number": number}
            assert {name: entry.read(name) for name in entry.files} == content(number)
    return n_found


@pytest.mark.parametrize(
    "n_kills",
    [
        pytest.param(40, marks=[pytest.mark.slow("5 s: 40 kills"), pytest.mark.in_ci]),
        pytest.param(200, marks=pytest.mark.slow("20 s: 200 kills")),
    ],
)
def test_kills_at_random_instants_leave_whole_entries_or_none(
    cache: Cache, warnings: list[str], n_kills: int
) -> None:
    """Two processes work side by side; after their death every lock is free at once."""
    rng = random.Random(11)
    n_found = 0
    for _ in range(n_kills // 2):
        pids = [start(cache.root), start(cache.root)]
        for pid in pids:
            time.sleep(rng.uniform(0, _MAX_WORK_SECS))
            kill(pid)
        n_found += whole_entries(cache)
        for number in range(_N_KEYS):
            lock = cache.try_lock(key(number))
            assert lock is not None, "the lock of a dead process keeps others out"
            lock.release()

    assert warnings == []
    assert n_found > n_kills / 2, "the children hardly wrote an entry"


def test_garbage_collection_removes_what_killed_processes_left(cache: Cache) -> None:
    """Temporary files, locks and blobs without an entry go; whole entries stay."""
    rng = random.Random(12)
    n_runs = n_left = 0
    # On a busy machine, most are killed before they write.
    while n_runs < 20 or not n_left:
        assert n_runs < 400, "no child was killed while it wrote"
        n_runs += 1
        pid = start(cache.root)
        time.sleep(rng.uniform(0, _MAX_WORK_SECS))
        kill(pid)
        before = {entry.digest for entry in index.entries(cache.local)}
        n_left += cache_gc.collect(cache.local).n_strays

        kept = set(index.entries(cache.local))
        assert {entry.digest for entry in kept} == before
        files = {path for entry in kept for path in (entry.path, *entry.blobs)}
        assert {str(path.relative_to(cache.root)) for path in files} == set(names(cache.root))


def test_wait_for_a_killed_process_ends_at_once(cache: Cache, tmp_path: Path) -> None:
    """The waiting process then makes the entry."""
    flag = tmp_path / "locked"
    pid = os.fork()
    if pid == 0:
        lock = cache.try_lock(key())
        flag.touch()
        time.sleep(600)
        os._exit(0 if lock else 1)
    while not flag.exists():
        time.sleep(0.005)
    assert cache.try_lock(key()) is None

    kill(pid)

    assert cache.wait_for(key()) is None
    assert cache.try_lock(key()) is not None


def test_a_lock_dies_with_its_process_and_not_with_its_children(
    cache: Cache, tmp_path: Path
) -> None:
    """A child that a maker forked does not hold the lock of its dead parent."""
    flag = tmp_path / "forked"
    pid = os.fork()
    if pid == 0:
        lock = cache.try_lock(key())
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0 if lock else 1)
        flag.write_text(str(child))
        time.sleep(600)
        os._exit(0)
    while not flag.exists() or not flag.read_text():
        time.sleep(0.005)

    try:
        kill(pid)
        assert cache.try_lock(key()) is not None
    finally:
        os.kill(int(flag.read_text()), signal.SIGKILL)


def test_a_child_does_not_release_the_lock_of_its_parent(cache: Cache) -> None:
    """Releasing it in the child does nothing."""
    lock = cache.try_lock(key())
    assert lock is not None
    pid = os.fork()
    if pid == 0:
        lock.release()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)

    assert cache.try_lock(key()) is None
    lock.release()
    assert cache.try_lock(key()) is not None
