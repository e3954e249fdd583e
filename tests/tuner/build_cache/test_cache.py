"""What was made once is found, whole, by everybody."""

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.build_cache.entries import CODE, WEIGHTS, key, large, made, names, put, small
from tuner.build_cache.cache import BuildLock, Cache
from tuner.build_cache.keys import Differing, Key


def test_what_was_made_is_found(cache: Cache) -> None:
    """Files, key and information come back as they were, and nothing is left beside them."""
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
    """Nothing is made again, not even by another cache on the same folder."""
    put(cache, key())

    found = Cache(cache.root).get_or_make(key(), lambda _: pytest.fail("made again"))

    assert found.hit
    assert found.entry.read("code.o") == CODE


def test_another_key_is_a_miss(cache: Cache) -> None:
    """One part differs, and nothing is found."""
    put(cache, key(0))

    assert cache.find(key(1)) is None
    assert cache.find(Key("library", key(0).parts)) is None


def test_placed_files_are_whole_and_large_ones_are_links(cache: Cache, tmp_path: Path) -> None:
    """A large file takes no room a second time, and is read-only."""
    put(cache, key(), large)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "code.o").write_text("of before")

    with cache.find(key()) or pytest.fail("gone") as entry:
        entry.place(tmp_path / "out")

    weights = tmp_path / "out" / "weights.bin"
    assert names(tmp_path / "out") == ["code.o", "empty", "weights.bin"]
    assert (tmp_path / "out" / "code.o").read_bytes() == CODE
    assert weights.read_bytes() == WEIGHTS
    assert weights.stat().st_nlink == 2
    assert weights.stat().st_mode & 0o777 == 0o444


def test_placing_never_writes_through_a_link(cache: Cache, tmp_path: Path) -> None:
    """A folder that holds links to one entry takes another, and the first stays whole."""

    def other(folder: Path) -> dict[str, Any]:
        (folder / "weights.bin").write_bytes(WEIGHTS[::-1])
        return {}

    first, second = made(cache, key(0), large), made(cache, key(1), other)
    for entry in (first, second):
        entry.place(tmp_path)

    assert (tmp_path / "weights.bin").read_bytes() == WEIGHTS[::-1]
    assert first.read("weights.bin") == WEIGHTS
    found = cache.find(key(0))
    assert found is not None
    assert found.read("weights.bin") == WEIGHTS


def test_large_files_that_compress_are_compressed(cache: Cache, tmp_path: Path) -> None:
    """They take less room, and no file beside the entry."""

    def zeros(folder: Path) -> dict[str, Any]:
        (folder / "zeros").write_bytes(bytes(3 << 20))
        return {}

    path = put(cache, key(), zeros)

    assert path.stat().st_size < 10_000
    assert len(names(cache.root)) == 1
    with cache.find(key()) or pytest.fail("gone") as entry:
        entry.place(tmp_path)
    assert (tmp_path / "zeros").read_bytes() == bytes(3 << 20)


def test_an_open_entry_outlives_its_files(cache: Cache, tmp_path: Path) -> None:
    """Whoever empties the store by hand takes nothing from whom it serves."""
    entry = made(cache, key(), large)
    for path in cache.root.rglob("*"):
        if path.is_file():
            path.unlink()

    entry.place(tmp_path)

    assert (tmp_path / "weights.bin").read_bytes() == WEIGHTS
    assert entry.read("code.o") == CODE


def test_a_closed_entry_reads_no_large_file(cache: Cache) -> None:
    """Its file may be another one's by now."""
    entry = made(cache, key(), large)
    entry.close()
    entry.close()

    with pytest.raises(ValueError, match="closed"):
        entry.read("weights.bin")


@pytest.mark.parametrize("error", [RuntimeError("the compiler failed"), KeyboardInterrupt()])
def test_a_failure_to_make_leaves_nothing(cache: Cache, error: BaseException) -> None:
    """Neither half an entry nor a lock, and the next one makes it."""

    def fail(folder: Path) -> dict[str, Any]:
        (folder / "code.o").write_bytes(b"half")
        raise error

    with pytest.raises(type(error)):
        cache.get_or_make(key(), fail)

    assert names(cache.root) == []
    put(cache, key())


@pytest.mark.parametrize("what", ["folder", "link"])
def test_an_entry_holds_files_only(cache: Cache, what: str) -> None:
    """Anything else is a mistake of the maker, and leaves no lock."""

    def wrong(folder: Path) -> dict[str, Any]:
        path = folder / "wrong"
        path.mkdir() if what == "folder" else path.symlink_to("/etc/passwd")
        return {}

    with pytest.raises(ValueError, match="holds files and nothing else"):
        cache.get_or_make(key(), wrong)
    assert names(cache.root) == []


def test_a_claim_keeps_others_out_until_it_is_given_back(cache: Cache) -> None:
    """Threads and processes alike: a claim is of one."""
    first = cache.try_claim(key())
    assert first is not None
    assert first.found is None
    assert cache.try_claim(key()) is None
    assert Cache(cache.root).try_claim(key()) is None
    with cache.try_claim(key(1)) or pytest.fail("another key is free") as other:
        assert other.found is None

    first.abandon()
    first.abandon()

    assert cache.try_claim(key()) is not None


def test_a_claim_that_is_forgotten_is_given_back(cache: Cache) -> None:
    """A thread that fails without a word keeps nobody waiting."""
    claim: BuildLock | None = cache.try_claim(key())
    assert claim is not None
    del claim

    assert cache.try_claim(key()) is not None


def test_a_claim_looks_again(cache: Cache) -> None:
    """An entry that appeared between a look-up and the claim is not made again."""
    assert cache.find(key()) is None
    put(Cache(cache.root), key())

    claim = cache.try_claim(key())

    assert claim is not None
    assert claim.found is not None


def test_a_kept_claim_is_an_entry_for_those_who_wait(cache: Cache, tmp_path: Path) -> None:
    """They get it as soon as it is there."""
    claim = cache.try_claim(key())
    assert claim is not None
    with ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(cache.wait_for, key()) for _ in range(4)]
        time.sleep(0.05)
        assert not any(wait.done() for wait in waits)
        (tmp_path / "made").mkdir()
        claim.keep(tmp_path / "made", small(tmp_path / "made"))
        entries = [wait.result(10) for wait in waits]

    assert all(entry is not None and entry.read("code.o") == CODE for entry in entries)


def test_nobody_waits_for_one_who_gave_up(cache: Cache) -> None:
    """Whoever waited makes it."""
    claim = cache.try_claim(key())
    assert claim is not None
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(cache.wait_for, key())
        claim.abandon()

        assert wait.result(10) is None


def test_nobody_waits_for_an_entry_that_was_deleted(cache: Cache, tmp_path: Path) -> None:
    """It was there for an instant; who did not see it makes it again."""
    claim = cache.try_claim(key())
    assert claim is not None
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(cache.get_or_make, key(), small)
        time.sleep(0.05)
        (tmp_path / "made").mkdir()
        # Removed before its lock is given back: a waiter never has the time to see it.
        abandon, claim.abandon = claim.abandon, lambda: None  # type: ignore[method-assign]
        claim.keep(tmp_path / "made", small(tmp_path / "made")).close()
        cache.local.path_of("subgraph", key().digest).unlink()
        abandon()

        assert not wait.result(10).hit


def test_many_threads_make_an_entry_once(cache: Cache) -> None:
    """All of them get it."""
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


def test_an_entry_is_found_whole_while_it_is_written_again_and_again(cache: Cache) -> None:
    """A reader sees one version or another, never half of one, and no damage is reported."""
    stop = threading.Event()
    put(cache, key(), large)

    def write() -> None:
        while not stop.is_set():
            with cache.new_folder() as folder:
                info = large(folder)
                claim = cache.try_claim(key())
                assert claim is not None
                claim.keep(folder, info).close()

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
    """Of the entries of its kind the one that differs in the fewest parts is named."""
    put(cache, key(1, trace="a", llvm="19"))
    put(cache, key(2, trace="b", llvm="19"))
    put(cache, key(2, kind="library", trace="c", llvm="20"))

    found = cache.nearest(key(2, trace="c", llvm="19"))

    assert found is not None
    assert found.digest == key(2, trace="b", llvm="19").digest
    assert found.parts == (Differing("trace", "c", "b"),)
    assert cache.nearest(key(0, kind="program")) is None


def test_of_equally_near_entries_the_one_of_like_title_is_named(cache: Cache) -> None:
    """Another convolution says more of a convolution than what happened to be used last."""
    for title in ("conv2d[1x8x8x16]", "conv2d[1x8x8x160]", "softmax[1x10]"):
        put(cache, Key("subgraph", {"workload": title}, title))

    for asked, nearest in [
        ("conv2d[1x8x8x16]", "conv2d[1x8x8x16]"),
        ("conv2d[1x8x8x161]", "conv2d[1x8x8x160]"),
        ("softmax[1x12]", "softmax[1x10]"),
    ]:
        found = cache.nearest(Key("subgraph", {"workload": f"new {asked}"}, asked))
        assert found is not None
        assert found.title == nearest


def test_use_is_noted_once_an_hour(cache: Cache) -> None:
    """A look-up writes nothing, as a rule; a time in the future counts as now."""
    path = put(cache, key())
    now = time.time()
    for before, is_touched in [(now - 60, False), (now - 7200, True), (now + 86400, True)]:
        os.utime(path, (before, before))
        with cache.find(key()) or pytest.fail("gone"):
            pass
        assert (abs(path.stat().st_mtime - before) > 1) == is_touched


def test_information_is_json(cache: Cache) -> None:
    """It is returned as it was given."""
    info = {"b": [1, 2.5, None], "a": {"ä": True}}

    def make(_folder: Path) -> dict[str, Any]:
        return info

    made(cache, key(), make).close()

    with cache.find(key()) or pytest.fail("gone") as entry:
        assert json.dumps(entry.info, sort_keys=True) == json.dumps(info, sort_keys=True)
