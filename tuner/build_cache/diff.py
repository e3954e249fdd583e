"""Explain a cache miss by the entry whose key differs least."""

from functools import lru_cache
from itertools import takewhile

from tuner.build_cache import index
from tuner.build_cache.headers import Header
from tuner.build_cache.index import IndexedEntry
from tuner.build_cache.keys import Key, KeyDifference, differing
from tuner.build_cache.local import LocalTier

# Entries compared, most recently used first.
_MAX_COMPARED = 2000


def nearest(local: LocalTier, key: Key) -> KeyDifference | None:
    """Return how the entry of the same kind that differs in the fewest parts differs.

    Ties go to the title that begins most like the key's, then to the most recently used entry.
    """
    entries = [entry for entry in index.entries(local, key.kind) if entry.digest != key.digest]
    entries.sort(key=lambda entry: entry.used, reverse=True)
    best: tuple[tuple[int, int], KeyDifference] | None = None
    for entry in entries[:_MAX_COMPARED]:
        header = _read(entry)
        if header is None:
            continue
        parts = differing(key.parts, header.parts)
        rank = (len(parts), -_n_alike(header.title, key.title))
        if best is None or rank < best[0]:
            best = (rank, KeyDifference(entry.digest, header.title, parts))
    return None if best is None else best[1]


def _n_alike(one: str, other: str) -> int:
    """Return the length of the common prefix of two titles; equal titles count one more."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(f"{one}\n", f"{other}\n", strict=False))
    return sum(1 for _ in same)


@lru_cache(maxsize=2 * _MAX_COMPARED)
def _read(entry: IndexedEntry) -> Header | None:
    """Read a header once per process: a build explains each of its misses."""
    return index.header_of(entry)
