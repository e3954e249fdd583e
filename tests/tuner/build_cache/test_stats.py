"""Statistics and verification of a store."""

import os
import time
from pathlib import Path

from tests.tuner.build_cache.entries import CODE, WEIGHTS, key, large, names, put
from tuner.build_cache import index
from tuner.build_cache import stats as cache_stats
from tuner.build_cache.cache import Cache


def test_stats_sum_up_by_kind(cache: Cache) -> None:
    """Bytes on disk are those of the files; raw bytes those of the unpacked content."""
    now = time.time()
    for number in range(3):
        os.utime(put(cache, key(number), large), (now - 100 * number,) * 2)
    put(cache, key(0, kind="library"))

    library, subgraph = cache_stats.stats(cache.local)

    assert (library.kind, library.n_entries, library.n_raw_bytes) == ("library", 1, len(CODE))
    assert (subgraph.kind, subgraph.n_entries) == ("subgraph", 3)
    assert subgraph.n_bytes == sum(
        path.stat().st_size
        for path in (cache.root / "v1" / "subgraph").rglob("*")
        if path.is_file()
    )
    assert abs(subgraph.n_raw_bytes - 3 * (len(CODE) + len(WEIGHTS))) < 1000
    assert abs(subgraph.newest_use - subgraph.oldest_use - 200) < 1


def test_stats_of_a_missing_store_are_empty(cache: Cache) -> None:
    """A store that does not exist has no kinds."""
    assert cache_stats.stats(cache.local) == []


def test_verifying_finds_each_damaged_entry(cache: Cache) -> None:
    """A changed bit is found in entries and blobs; whole entries have no problem."""
    paths = [put(cache, key(number), large) for number in range(4)]
    blob = next(paths[1].parent.glob(f"{paths[1].name}.*.blob"))
    blob.chmod(0o644)
    blob.write_bytes(b"\1" + WEIGHTS[1:])
    os.truncate(paths[2], 100)
    before = names(cache.root)

    results = list(cache_stats.verify(cache.local, index.entries(cache.local), drop=False))

    problems = {result.entry.path: result.problem for result in results if result.problem}
    assert len(results) == 4
    assert set(problems) == {paths[1], paths[2]}
    assert "weights.bin" in str(problems[paths[1]])
    assert names(cache.root) == before


def test_verifying_drops_damaged_entries_on_request(cache: Cache) -> None:
    """Damaged entries are removed with their blobs; the others stay."""
    paths = [put(cache, key(number), large) for number in range(2)]
    os.truncate(paths[0], 100)

    results = list(cache_stats.verify(cache.local, index.entries(cache.local), drop=True))

    assert {result.entry.path: result.dropped for result in results} == {
        paths[0]: True,
        paths[1]: False,
    }
    assert [entry.path for entry in index.entries(cache.local)] == [paths[1]]
    assert len(names(cache.root)) == 2


def test_other_files_are_not_listed(cache: Cache, tmp_path: Path) -> None:
    """Notes in the folder of the store are ignored."""
    path = put(cache, key())
    (path.parent / "notes.txt").touch()
    (tmp_path / "cache" / "v1" / "Notes").mkdir()

    assert [entry.path for entry in index.entries(cache.local)] == [path]
    assert index.kinds(cache.local) == ["subgraph"]
