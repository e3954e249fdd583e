"""What is in a store can be summed up and verified."""

import os
import time
from pathlib import Path

from tests.tuner.build_cache.entries import CODE, WEIGHTS, key, large, names, put
from tuner.build_cache import index
from tuner.build_cache import stats as cache_stats
from tuner.build_cache.cache import Cache


def test_stats_sum_up_by_kind(cache: Cache) -> None:
    """Bytes on disk are those of the files; unpacked, of what was put in."""
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


def test_stats_of_nothing(cache: Cache) -> None:
    """A store that does not exist has no kinds."""
    assert cache_stats.stats(cache.local) == []


def test_verifying_reads_everything(cache: Cache) -> None:
    """One bit is found wherever it is; what is whole is not complained about."""
    paths = [put(cache, key(number), large) for number in range(4)]
    blob = next(each for each in paths[1].parent.glob("*.blob") if paths[1].name in each.name)
    blob.chmod(0o644)
    blob.write_bytes(b"\1" + WEIGHTS[1:])
    os.truncate(paths[2], 100)
    before = names(cache.root)

    verdicts = list(cache_stats.verify(cache.local, index.spots(cache.local), drop=False))

    problems = {v.spot.path: v.problem for v in verdicts if v.problem is not None}
    assert len(verdicts) == 4
    assert set(problems) == {paths[1], paths[2]}
    assert "weights.bin" in str(problems[paths[1]])
    assert names(cache.root) == before


def test_verifying_drops_when_told_to(cache: Cache) -> None:
    """The damaged ones go, with what lies beside them; the others stay."""
    paths = [put(cache, key(number), large) for number in range(2)]
    os.truncate(paths[0], 100)

    verdicts = list(cache_stats.verify(cache.local, index.spots(cache.local), drop=True))

    assert {v.spot.path: v.dropped for v in verdicts} == {paths[0]: True, paths[1]: False}
    assert [spot.path for spot in index.spots(cache.local)] == [paths[1]]
    assert len(names(cache.root)) == 2


def test_what_is_no_entry_is_not_listed(cache: Cache, tmp_path: Path) -> None:
    """Somebody's notes in the folder are left alone."""
    path = put(cache, key())
    (path.parent / "notes.txt").touch()
    (tmp_path / "cache" / "v1" / "Notes").mkdir()

    assert [spot.path for spot in index.spots(cache.local)] == [path]
    assert index.kinds(cache.local) == ["subgraph"]
