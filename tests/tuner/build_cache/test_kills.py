"""kill -9 at any instant leaves no broken entry, and keeps nobody waiting."""

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

# Later versions of Python doubt forks of processes with threads; the children here take no lock
# that a thread might hold.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

N_KILLS = 200
_N_KEYS = 5
_CODE_BYTES = 900_000
# A child gets this far into its work at most before it is killed.
_LATEST_SECS = 0.03


def content(number: int) -> dict[str, bytes]:
    """The files of an entry, different for each, and so large that writing them takes a while."""
    large = WEIGHTS[number:] + WEIGHTS[:number]
    return {"code.o": large[:_CODE_BYTES], "weights.bin": large}


def work(root: Path) -> None:
    """Make entries, read them, remove them, for ever."""
    cache = Cache(root)
    drawn = random.Random(os.getpid())
    while True:
        number = drawn.randrange(_N_KEYS)

        def make(folder: Path, number: int = number) -> dict[str, Any]:
            for name, data in content(number).items():
                (folder / name).write_bytes(data)
            return {"number": number}

        with cache.get_or_make(key(number), make).entry as entry:
            entry.read("weights.bin")
        if drawn.random() < 0.5:
            cache_gc.collect(cache.local, max_bytes=2 << 20)


def start(root: Path) -> int:
    """Fork a child that works: it starts in a millisecond and is really killed."""
    pid = os.fork()
    if pid == 0:
        try:
            work(root)
        finally:
            os._exit(1)
    return pid


def kill(pid: int) -> None:
    """Kill a child at once, and see that nothing else had ended it."""
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def whole_entries(cache: Cache) -> int:
    """Read every entry; a damaged one fails the test. Return how many there are."""
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


def test_kills_at_random_instants_leave_whole_entries_or_none(
    cache: Cache, warnings: list[str]
) -> None:
    """Also where two processes work side by side; the next claim is free at once."""
    drawn = random.Random(11)
    n_found = 0
    for _ in range(N_KILLS // 2):
        pids = [start(cache.root), start(cache.root)]
        for pid in pids:
            time.sleep(drawn.uniform(0, _LATEST_SECS))
            kill(pid)
        n_found += whole_entries(cache)
        for number in range(_N_KEYS):
            claim = cache.try_claim(key(number))
            assert claim is not None, "the lock of a dead process keeps others out"
            claim.abandon()

    assert warnings == []
    assert n_found > N_KILLS / 2, "the children hardly came to write anything"


def test_upkeep_removes_what_killed_processes_left(cache: Cache) -> None:
    """Temporary files, locks and blobs without an entry, and no entry that is whole."""
    drawn = random.Random(12)
    n_left = 0
    for _ in range(20):
        pid = start(cache.root)
        time.sleep(drawn.uniform(0, _LATEST_SECS))
        kill(pid)
        before = {spot.digest for spot in index.spots(cache.local)}
        n_left += cache_gc.collect(cache.local).n_strays

        kept = set(index.spots(cache.local))
        assert {spot.digest for spot in kept} == before
        files = {path for spot in kept for path in (spot.path, *spot.blobs)}
        assert {str(path.relative_to(cache.root)) for path in files} == set(names(cache.root))
    assert n_left > 0, "no child was killed while it wrote"


def test_whoever_waits_for_a_killed_process_takes_over(cache: Cache, tmp_path: Path) -> None:
    """At once, and long before its silence would tell."""
    flag = tmp_path / "claimed"
    pid = os.fork()
    if pid == 0:
        claim = cache.try_claim(key())
        flag.touch()
        time.sleep(600)
        os._exit(0 if claim else 1)
    while not flag.exists():
        time.sleep(0.005)
    assert cache.try_claim(key()) is None

    kill(pid)

    assert cache.wait_for(key()) is None
    assert cache.try_claim(key()) is not None


def test_a_lock_dies_with_its_process_and_not_with_its_children(
    cache: Cache, tmp_path: Path
) -> None:
    """A worker that a maker had forked does not hold what its dead parent held."""
    flag = tmp_path / "forked"
    pid = os.fork()
    if pid == 0:
        claim = cache.try_claim(key())
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0 if claim else 1)
        flag.write_text(str(child))
        time.sleep(600)
        os._exit(0)
    while not flag.exists() or not flag.read_text():
        time.sleep(0.005)

    try:
        kill(pid)
        assert cache.try_claim(key()) is not None
    finally:
        os.kill(int(flag.read_text()), signal.SIGKILL)


def test_a_child_does_not_give_back_what_its_parent_holds(cache: Cache) -> None:
    """Whatever the child does on its way out."""
    claim = cache.try_claim(key())
    assert claim is not None
    pid = os.fork()
    if pid == 0:
        claim.abandon()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)

    assert cache.try_claim(key()) is None
    claim.abandon()
    assert cache.try_claim(key()) is not None
