"""Which entry comes nearest to a key that has none: the explanation of a miss."""

from functools import lru_cache
from itertools import takewhile

from tuner.build_cache import index
from tuner.build_cache.headers import Header
from tuner.build_cache.index import Spot
from tuner.build_cache.keys import Difference, Key, differing
from tuner.build_cache.local import LocalTier

# So many of those used last are compared.
_LIMIT = 2000


def nearest(local: LocalTier, key: Key) -> Difference | None:
    """Return how the entry of the same kind that differs in the fewest parts differs.

    Ties go to the title that begins most like the key's, then to the entry used last.
    """
    found = [spot for spot in index.spots(local, key.kind) if spot.digest != key.digest]
    found.sort(key=lambda spot: spot.used, reverse=True)
    best: tuple[tuple[int, int], Difference] | None = None
    for spot in found[:_LIMIT]:
        header = _read(spot)
        if header is None:
            continue
        parts = differing(key.parts, header.parts)
        rank = (len(parts), -_n_alike(header.title, key.title))
        if best is None or rank < best[0]:
            best = (rank, Difference(spot.digest, header.title, parts))
    return None if best is None else best[1]


def _n_alike(one: str, other: str) -> int:
    """Count the characters that two titles begin with alike; equal ones have one more."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(f"{one}\n", f"{other}\n", strict=False))
    return sum(1 for _ in same)


@lru_cache(maxsize=2 * _LIMIT)
def _read(spot: Spot) -> Header | None:
    """Remember what was read: a build asks once for each of its misses."""
    return index.header_of(spot)
