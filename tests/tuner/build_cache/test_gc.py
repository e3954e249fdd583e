"""Garbage collection removes the least recently used entries, and none that is in use."""

import os
import subprocess
import sys
import time

import pytest

from tests.cli import ROOT
from tests.tuner.build_cache.entries import WEIGHTS, key, large, names, put
from tuner.build_cache import gc as cache_gc
from tuner.build_cache import index
from tuner.build_cache.cache import Cache
from tuner.files.process_tags import process_tag

# Later versions of Python warn of forks in processes with threads; the children here take no lock
# that a thread may hold.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


@pytest.fixture
def filled(cache: Cache) -> Cache:
    """Four entries: number N was used N hours ago, and the last has no large file."""
    now = time.time()
    for number in range(4):
        path = put(cache, key(number), large) if number < 3 else put(cache, key(number))
        os.utime(path, (now - 3600 * number, now - 3600 * number))
    return cache


def left(cache: Cache) -> list[int]:
    """Return the numbers of the entries that are left."""
    digests = {entry.digest for entry in index.entries(cache.local)}
    return [number for number in range(4) if key(number).digest in digests]


def test_without_a_limit_no_entry_is_removed(filled: Cache) -> None:
    """Age alone removes nothing."""
    collected = cache_gc.collect(filled.local)

    assert (collected.n_entries, collected.n_left) == (0, 4)
    assert left(filled) == [0, 1, 2, 3]


def test_least_recently_used_entries_are_removed_first(filled: Cache) -> None:
    """They are removed with their blobs until the rest fits."""
    n_bytes = sum(entry.n_bytes for entry in index.entries(filled.local))

    collected = cache_gc.collect(filled.local, max_bytes=n_bytes - len(WEIGHTS))

    assert left(filled) == [0, 1]
    assert (collected.n_entries, collected.n_left) == (2, 2)
    assert collected.n_bytes + collected.n_left_bytes == n_bytes
    assert len(names(filled.root)) == 4
    assert cache_gc.collect(filled.local, max_bytes=0).n_left == 0
    assert names(filled.root) == []


def test_entries_unused_for_too_long_are_removed(filled: Cache) -> None:
    """The time of the last use counts."""
    cache_gc.collect(filled.local, unused_for_secs=1.5 * 3600)

    assert left(filled) == [0, 1]


def test_a_dry_run_removes_nothing(filled: Cache) -> None:
    """It returns the counts of a real run."""
    before = names(filled.root)

    planned = cache_gc.collect(filled.local, max_bytes=0, dry_run=True)

    assert names(filled.root) == before
    assert cache_gc.collect(filled.local, max_bytes=0) == planned


def test_a_last_use_in_the_future_is_now(filled: Cache) -> None:
    """A clock that was set back neither ages an entry nor keeps it for ever."""
    path = filled.local.path_of("subgraph", key(2).digest)
    os.utime(path, (time.time() + 1e6, time.time() + 1e6))

    cache_gc.collect(filled.local, unused_for_secs=1800)

    assert left(filled) == [0, 2]
    assert all(entry.used <= time.time() for entry in index.entries(filled.local))
    assert cache_gc.collect(filled.local, max_bytes=0).n_left == 0


def test_open_entry_stays_until_it_is_closed(filled: Cache) -> None:
    """It is counted as held."""
    with filled.find(key(1)) or pytest.fail("gone") as entry:
        collected = cache_gc.collect(filled.local, max_bytes=0)

        assert (collected.n_entries, collected.n_held) == (3, 1)
        assert left(filled) == [1]
        assert entry.read("weights.bin") == WEIGHTS
    assert cache_gc.collect(filled.local, max_bytes=0).n_left == 0


def test_entry_open_in_another_process_stays_until_that_dies(filled: Cache) -> None:
    """The kernel ends the hold with the process."""
    program = (
        "import pathlib\n"
        "from tests.tuner.build_cache.entries import key\n"
        "from tuner.build_cache.cache import Cache\n"
        f"entry = Cache(pathlib.Path({str(filled.root)!r})).find(key(0))\n"
        "print(entry is not None, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"True\n"
        cache_gc.collect(filled.local, max_bytes=0)
        assert left(filled) == [0]
        reader.kill()
        reader.communicate()

    assert cache_gc.collect(filled.local, max_bytes=0).n_left == 0


def test_files_of_dead_processes_are_removed(cache: Cache) -> None:
    """Temporary files, locks and blobs without an entry go; those of living processes stay."""
    path = put(cache, key(), large)
    path.unlink()
    scratch, locks = cache.local.scratch, cache.root / "v1" / ".locks"
    dead = process_tag().rpartition(".")[0] + ".1"
    (scratch / f"{dead}.abc").write_text("half an entry")
    (scratch / f"{dead}.def").mkdir()
    (scratch / f"{dead}.def" / "code.o").touch()
    (scratch / f"{process_tag()}.abc").touch()
    (scratch / "far.1.2.3.young").touch()
    (scratch / "far.1.2.3.old").touch()
    os.utime(scratch / "far.1.2.3.old", (0, 0))
    lock = cache.try_lock(key(1))
    assert lock is not None
    (locks / f"{key(2).digest}.lock").touch()

    assert cache_gc.collect(cache.local, dry_run=True).n_strays == 5
    assert cache_gc.collect(cache.local).n_strays == 5

    own = f"{process_tag()}.abc"
    assert sorted(path.name for path in scratch.iterdir()) == sorted([own, "far.1.2.3.young"])
    assert [path.name for path in locks.glob("*.lock")] == [f"{key(1).digest}.lock"]
    assert not list(path.parent.iterdir())


def test_blobs_of_an_entry_that_is_being_made_stay(cache: Cache) -> None:
    """They are written before their entry."""
    path = put(cache, key(), large)
    path.unlink()
    (blob,) = path.parent.iterdir()
    lock = cache.try_lock(key())

    cache_gc.collect(cache.local)

    assert lock is not None
    assert blob.exists()


@pytest.mark.in_ci
@pytest.mark.slow("5 s: processes meet")
def test_entry_used_while_it_is_removed_is_whole_or_missing(cache: Cache) -> None:
    """Readers beside garbage collection never see damage."""
    for _ in range(20):
        put(cache, key(), large)
        pid = os.fork()
        if pid == 0:
            cache_gc.collect(cache.local, max_bytes=0)
            os._exit(0)
        while (entry := cache.find(key())) is not None:
            with entry:
                assert entry.read("weights.bin") == WEIGHTS
            if os.waitpid(pid, os.WNOHANG)[0]:
                pid = 0
                break
        if pid:
            os.waitpid(pid, 0)
        cache_gc.collect(cache.local, max_bytes=0)


def test_a_store_that_does_not_exist_is_empty(cache: Cache) -> None:
    """Garbage collection does not create it."""
    assert cache_gc.collect(cache.local, max_bytes=0).n_entries == 0
    assert not cache.root.exists()
