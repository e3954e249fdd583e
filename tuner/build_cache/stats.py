"""What the local tier holds, in sums, and whether it is whole."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tuner.build_cache import headers, index, packing
from tuner.build_cache.headers import Damaged, Newer
from tuner.build_cache.index import Spot
from tuner.build_cache.local import LocalTier, open_blobs, read_all

# So many entries of a kind are looked into for what they would be unpacked.
_SAMPLE = 256


@dataclass(frozen=True)
class KindStats:
    """The entries of one kind.

    Attributes:
        kind: Of all of them.
        n_entries: How many there are.
        n_bytes: On disk.
        n_raw_bytes: Unpacked; judged by a sample where there are many.
        oldest_use: When the one unused for longest was used last, seconds since 1970.
        newest_use: When the one used last was.
    """

    kind: str
    n_entries: int
    n_bytes: int
    n_raw_bytes: int
    oldest_use: float
    newest_use: float


@dataclass(frozen=True)
class Verdict:
    """What is wrong with an entry; None if it is whole."""

    spot: Spot
    problem: str | None
    dropped: bool = False


def stats(local: LocalTier) -> list[KindStats]:
    """Sum entries up by kind, from what directories say alone."""
    return [_stats_of(kind, list(index.spots(local, kind))) for kind in index.kinds(local)]


def verify(local: LocalTier, spots: Iterable[Spot], *, drop: bool) -> Iterator[Verdict]:
    """Read entries whole, one after the other.

    Args:
        local: Where they are.
        spots: Which.
        drop: Remove those that are damaged; never one of a later version.
    """
    for spot in spots:
        try:
            descriptor = os.open(spot.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield Verdict(spot, f"it cannot be read: {error.strerror}")
            continue
        try:
            problem, is_damaged = _problem(spot, descriptor)
            found = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        dropped = is_damaged and drop and local.drop(spot.kind, spot.digest, found)
        yield Verdict(spot, problem, dropped)


def _stats_of(kind: str, spots: list[Spot]) -> KindStats:
    used = [spot.used for spot in spots] or [0.0]
    n_bytes = sum(spot.n_bytes for spot in spots)
    sample = spots[:: max(1, len(spots) // _SAMPLE)]
    n_sampled = sum(spot.n_bytes for spot in sample)
    n_raw = sum(_raw_bytes(spot) for spot in sample)
    return KindStats(
        kind=kind,
        n_entries=len(spots),
        n_bytes=n_bytes,
        n_raw_bytes=round(n_raw * n_bytes / n_sampled) if n_sampled else 0,
        oldest_use=min(used),
        newest_use=max(used),
    )


def _raw_bytes(spot: Spot) -> int:
    try:
        with spot.path.open("rb") as stream:
            return headers.read_prefix(stream.read(headers.PREFIX.size))[1]
    except (OSError, Damaged, Newer):
        return 0


def _problem(spot: Spot, descriptor: int) -> tuple[str | None, bool]:
    """Say what is wrong with an entry, and whether that makes it worthless."""
    try:
        data = read_all(descriptor, os.fstat(descriptor).st_size)
        header, _ = headers.read_header(data)
        if (header.kind, header.key.digest) != (spot.kind, spot.digest):
            raise Damaged("it was made for another key")
        _, body = packing.unpack(data, header.key)
        for name, how in header.stored.items():
            if how.form != "blob":
                packing.content_of(header, body, name)
        for blob in open_blobs(header, spot.path.parent, spot.digest).values():
            os.close(blob.descriptor)
    except Damaged as error:
        return str(error), True
    except Newer as error:
        return str(error), False
    except OSError as error:
        return f"it cannot be read: {error.strerror}", False
    return None, False
