"""Look-ups, locks and writes of the build cache."""

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.build_cache.entries import CODE, WEIGHTS, key, large, made, names, put, small
from tuner.build_cache.cache import BuildLock, Cache, open_cache, open_local
from tuner.build_cache.keys import Key, PartDifference
from tuner.settings import read_settings


def test_stored_entry_is_found(cache: Cache) -> None:
    """Files, key and information come back unchanged, and no other file is left."""
    assert cache.find(key()) is None
    put(cache, key())

    entry = cache.find(key())

    assert entry is not None
    assert (entry.key.parts, entry.key.title, entry.digest) == (
        key().parts,
        "conv",
        key().digest,
    )
    assert {name: file.n_bytes for name, file in entry.files.items()} == {
        "code.o": len(CODE),
        "empty": 0,
    }
    assert (entry.read("code.o"), entry.read("empty"), entry.info) == (CODE, b"", {"n_calls": 3})
    digest = key().digest
    assert names(cache.root) == [f"v1/subgraph/{digest[:2]}/{digest}"]


def test_a_second_time_is_a_hit(cache: Cache) -> None:
    """An entry is not made again, not even by another cache on the same folder."""
    put(cache, key())

    made_once = Cache(cache.root).get_or_make(key(), lambda _: pytest.fail("made again"))

    assert made_once.hit
    assert made_once.entry.read("code.o") == CODE


def test_another_key_is_a_miss(cache: Cache) -> None:
    """A key that differs in one part or in its kind has no entry."""
    put(cache, key(0))

    assert cache.find(key(1)) is None
    assert cache.find(Key("library", key(0).parts)) is None


def test_files_are_written_whole_and_large_ones_as_links(cache: Cache, tmp_path: Path) -> None:
    """A large file is a read-only hard link, which takes no space."""
    put(cache, key(), large)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "code.o").write_text("earlier")

    with cache.find(key()) or pytest.fail("gone") as entry:
        entry.write_into(tmp_path / "out")

    weights = tmp_path / "out" / "weights.bin"
    assert names(tmp_path / "out") == ["code.o", "empty", "weights.bin"]
    assert (tmp_path / "out" / "code.o").read_bytes() == CODE
    assert weights.read_bytes() == WEIGHTS
    assert weights.stat().st_nlink == 2
    assert weights.stat().st_mode & 0o777 == 0o444


def test_writing_into_a_folder_never_writes_through_a_link(cache: Cache, tmp_path: Path) -> None:
    """A folder that holds links to one entry takes another, and the first stays unchanged."""

    def other(folder: Path) -> dict[str, Any]:
        (folder / "weights.bin").write_bytes(WEIGHTS[::-1])
        return {}

    first, second = made(cache, key(0), large), made(cache, key(1), other)
    for entry in (first, second):
        entry.write_into(tmp_path)

    assert (tmp_path / "weights.bin").read_bytes() == WEIGHTS[::-1]
    assert first.read("weights.bin") == WEIGHTS
    reopened = cache.find(key(0))
    assert reopened is not None
    assert reopened.read("weights.bin") == WEIGHTS


def test_large_files_that_compress_are_compressed(cache: Cache, tmp_path: Path) -> None:
    """They take less space, and have no blob."""

    def zeros(folder: Path) -> dict[str, Any]:
        (folder / "zeros").write_bytes(bytes(3 << 20))
        return {}

    path = put(cache, key(), zeros)

    assert path.stat().st_size < 10_000
    assert len(names(cache.root)) == 1
    with cache.find(key()) or pytest.fail("gone") as entry:
        entry.write_into(tmp_path)
    assert (tmp_path / "zeros").read_bytes() == bytes(3 << 20)


def test_an_open_entry_outlives_its_files(cache: Cache, tmp_path: Path) -> None:
    """Emptying the store by hand does not affect the readers of an entry."""
    entry = made(cache, key(), large)
    for path in cache.root.rglob("*"):
        if path.is_file():
            path.unlink()

    entry.write_into(tmp_path)

    assert (tmp_path / "weights.bin").read_bytes() == WEIGHTS
    assert entry.read("code.o") == CODE


def test_a_closed_entry_reads_no_large_file(cache: Cache) -> None:
    """The descriptors of a closed entry may belong to other files."""
    entry = made(cache, key(), large)
    entry.close()
    entry.close()

    with pytest.raises(ValueError, match="closed"):
        entry.read("weights.bin")


@pytest.mark.parametrize("error", [RuntimeError("the compiler failed"), KeyboardInterrupt()])
def test_a_failure_to_make_leaves_nothing(cache: Cache, error: BaseException) -> None:
    """It leaves neither half an entry nor a lock, and the next caller makes the entry."""

    def fail(folder: Path) -> dict[str, Any]:
        (folder / "code.o").write_bytes(b"half")
        raise error

    with pytest.raises(type(error)):
        cache.get_or_make(key(), fail)

    assert names(cache.root) == []
    put(cache, key())


@pytest.mark.parametrize("what", ["folder", "link"])
def test_an_entry_holds_files_only(cache: Cache, what: str) -> None:
    """Anything else is refused, and leaves no lock."""

    def wrong(folder: Path) -> dict[str, Any]:
        path = folder / "wrong"
        path.mkdir() if what == "folder" else path.symlink_to("/etc/passwd")
        return {}

    with pytest.raises(ValueError, match="holds files and nothing else"):
        cache.get_or_make(key(), wrong)
    assert names(cache.root) == []


def test_a_lock_excludes_others_until_it_is_released(cache: Cache) -> None:
    """Caches on the same folder share the locks; other keys have locks of their own."""
    first = cache.try_lock(key())
    assert first is not None
    assert first.entry is None
    assert cache.try_lock(key()) is None
    assert Cache(cache.root).try_lock(key()) is None
    with cache.try_lock(key(1)) or pytest.fail("another key is free") as other:
        assert other.entry is None

    first.release()
    first.release()

    assert cache.try_lock(key()) is not None


def test_a_lock_without_references_is_released(cache: Cache) -> None:
    """A thread that fails without releasing it does not keep others waiting."""
    lock: BuildLock | None = cache.try_lock(key())
    assert lock is not None
    del lock

    assert cache.try_lock(key()) is not None


def test_a_lock_shows_an_entry_made_before_it_was_acquired(cache: Cache) -> None:
    """An entry that appeared between a look-up and the lock is not made again."""
    assert cache.find(key()) is None
    put(Cache(cache.root), key())

    lock = cache.try_lock(key())

    assert lock is not None
    assert lock.entry is not None


def test_waiters_get_the_entry_as_soon_as_it_is_kept(cache: Cache, tmp_path: Path) -> None:
    """Several threads may wait for one key."""
    lock = cache.try_lock(key())
    assert lock is not None
    with ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(cache.wait_for, key()) for _ in range(4)]
        time.sleep(0.05)
        assert not any(wait.done() for wait in waits)
        (tmp_path / "made").mkdir()
        lock.keep(tmp_path / "made", small(tmp_path / "made"))
        entries = [wait.result(10) for wait in waits]

    assert all(entry is not None and entry.read("code.o") == CODE for entry in entries)


def test_waiters_do_not_wait_for_a_released_lock(cache: Cache) -> None:
    """Without an entry the wait returns None, and the waiter may make it."""
    lock = cache.try_lock(key())
    assert lock is not None
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(cache.wait_for, key())
        lock.release()

        assert wait.result(10) is None


def test_waiters_do_not_wait_for_a_deleted_entry(cache: Cache, tmp_path: Path) -> None:
    """An entry that was there for an instant is made again by a waiter that missed it."""
    lock = cache.try_lock(key())
    assert lock is not None
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(cache.get_or_make, key(), small)
        time.sleep(0.05)
        (tmp_path / "made").mkdir()
        # Removed before its lock is released, so that a waiter never sees it.
        release, lock.release = lock.release, lambda: None  # type: ignore[method-assign]
        lock.keep(tmp_path / "made", small(tmp_path / "made")).close()
        cache.local.path_of("subgraph", key().digest).unlink()
        release()

        assert not wait.result(10).hit


def test_many_threads_make_an_entry_once(cache: Cache) -> None:
    """All of them get the entry."""
    n_made = []
    meet = threading.Barrier(16)

    def make(folder: Path) -> dict[str, Any]:
        n_made.append(1)
        time.sleep(0.1)
        return large(folder)

    def ask(_: int) -> bytes:
        meet.wait(10)
        with cache.get_or_make(key(), make).entry as entry:
            return entry.read("weights.bin")

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(ask, range(16))) == {WEIGHTS}
    assert len(n_made) == 1


def test_an_entry_is_found_whole_while_it_is_replaced(cache: Cache) -> None:
    """A reader sees a complete version each time, and never damage."""
    stop = threading.Event()
    put(cache, key(), large)

    def write() -> None:
        while not stop.is_set():
            with cache.new_folder() as folder:
                info = large(folder)
                lock = cache.try_lock(key())
                assert lock is not None
                lock.keep(folder, info).close()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for _ in range(200):
                with cache.find(key()) or pytest.fail("gone") as entry:
                    assert entry.read("code.o") == CODE
        finally:
            stop.set()
        writing.result(10)


def test_the_nearest_entry_explains_a_miss(cache: Cache) -> None:
    """The entry of the same kind that differs in the fewest parts is named."""
    put(cache, key(1, trace="a", llvm="19"))
    put(cache, key(2, trace="b", llvm="19"))
    put(cache, key(2, kind="library", trace="c", llvm="20"))

    difference = cache.nearest(key(2, trace="c", llvm="19"))

    assert difference is not None
    assert difference.digest == key(2, trace="b", llvm="19").digest
    assert difference.parts == (PartDifference("trace", "c", "b"),)
    assert cache.nearest(key(0, kind="program")) is None


def test_among_equally_near_entries_the_most_similar_title_is_named(cache: Cache) -> None:
    """A miss of a convolution is explained by another convolution."""
    for title in ("conv2d[1x8x8x16]", "conv2d[1x8x8x160]", "softmax[1x10]"):
        put(cache, Key("subgraph", {"workload": title}, title))

    for asked, nearest in [
        ("conv2d[1x8x8x16]", "conv2d[1x8x8x16]"),
        ("conv2d[1x8x8x161]", "conv2d[1x8x8x160]"),
        ("softmax[1x12]", "softmax[1x10]"),
    ]:
        difference = cache.nearest(Key("subgraph", {"workload": f"new {asked}"}, asked))
        assert difference is not None
        assert difference.title == nearest


def test_use_is_noted_once_an_hour(cache: Cache) -> None:
    """Most look-ups write nothing; a last use in the future counts as now."""
    path = put(cache, key())
    now = time.time()
    for before, is_touched in [(now - 60, False), (now - 7200, True), (now + 86400, True)]:
        os.utime(path, (before, before))
        with cache.find(key()) or pytest.fail("gone"):
            pass
        assert (abs(path.stat().st_mtime - before) > 1) == is_touched


def test_information_is_json(cache: Cache) -> None:
    """It is returned unchanged."""
    info = {"b": [1, 2.5, None], "a": {"ä": True}}

    def make(_folder: Path) -> dict[str, Any]:
        return info

    made(cache, key(), make).close()

    with cache.find(key()) or pytest.fail("gone") as entry:
        assert json.dumps(entry.info, sort_keys=True) == json.dumps(info, sort_keys=True)


def test_caches_of_one_process_warn_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Caches that meet the same problem log it once."""
    (tmp_path / "file").touch()
    settings = read_settings({"data_dir": tmp_path, "cache_dir": tmp_path / "file"})

    for cache in (open_local(settings), open_cache(settings)):
        for number in range(2):
            cache.get_or_make(key(number), lambda _: {}).entry.close()

    assert [record.message for record in caplog.records] == [
        f"cannot write the cache {tmp_path / 'file'}: Not a directory; nothing is kept in it"
    ]
