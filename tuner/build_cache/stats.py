"""Statistics and verification of the local tier."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tuner.build_cache import headers, index, packing
from tuner.build_cache.headers import DamagedEntryError, NewerFormatError
from tuner.build_cache.index import IndexedEntry
from tuner.build_cache.local import LocalTier, open_blobs, read_all

# Entries of a kind that are opened to estimate the unpacked size of all.
_SAMPLE = 256


@dataclass(frozen=True)
class KindStats:
    """Sums over the entries of one kind.

    Attributes:
        n_bytes: Size on disk.
        n_raw_bytes: Unpacked size; estimated from a sample where there are many.
        oldest_use: Last use of the least recently used entry, seconds since 1970.
        newest_use: Last use of the most recently used entry, seconds since 1970.
    """

    kind: str
    n_entries: int
    n_bytes: int
    n_raw_bytes: int
    oldest_use: float
    newest_use: float


@dataclass(frozen=True)
class VerifyResult:
    """The problem of an entry, None if it is whole; ``dropped`` says that it was removed."""

    entry: IndexedEntry
    problem: str | None
    dropped: bool = False


def stats(local: LocalTier) -> list[KindStats]:
    """Sum entries up by kind, from the directories and a sample of prefixes."""
    return [_stats_of(kind, list(index.entries(local, kind))) for kind in index.kinds(local)]


def verify(
    local: LocalTier, entries: Iterable[IndexedEntry], *, drop: bool
) -> Iterator[VerifyResult]:
    """Read entries whole, one after the other.

    Args:
        local: The store.
        entries: Entries of the store.
        drop: Remove damaged entries; those of a later version always stay.
    """
    for entry in entries:
        try:
            descriptor = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield VerifyResult(entry, f"it cannot be read: {error.strerror}")
            continue
        try:
            problem, is_damaged = _problem(entry, descriptor)
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        dropped = is_damaged and drop and local.drop(entry.kind, entry.digest, status)
        yield VerifyResult(entry, problem, dropped)


def _stats_of(kind: str, entries: list[IndexedEntry]) -> KindStats:
    used = [entry.used for entry in entries] or [0.0]
    n_bytes = sum(entry.n_bytes for entry in entries)
    sample = entries[:: max(1, len(entries) // _SAMPLE)]
    n_sampled = sum(entry.n_bytes for entry in sample)
    n_raw = sum(_raw_bytes(entry) for entry in sample)
    return KindStats(
        kind=kind,
        n_entries=len(entries),
        n_bytes=n_bytes,
        n_raw_bytes=round(n_raw * n_bytes / n_sampled) if n_sampled else 0,
        oldest_use=min(used),
        newest_use=max(used),
    )


def _raw_bytes(entry: IndexedEntry) -> int:
    try:
        with entry.path.open("rb") as stream:
            return headers.read_prefix(stream.read(headers.PREFIX.size))[1]
    except (OSError, DamagedEntryError, NewerFormatError):
        return 0


def _problem(entry: IndexedEntry, descriptor: int) -> tuple[str | None, bool]:
    """Return the problem of an entry, and whether it is damaged."""
    try:
        data = read_all(descriptor, os.fstat(descriptor).st_size)
        header, _ = headers.read_header(data)
        if (header.kind, header.key.digest) != (entry.kind, entry.digest):
            raise DamagedEntryError("it was made for another key")
        _, body = packing.unpack(data, header.key)
        for name, stored in header.stored.items():
            if stored.form != "blob":
                packing.content_of(header, body, name)
        for blob in open_blobs(header, entry.path.parent, entry.digest).values():
            os.close(blob.descriptor)
    except DamagedEntryError as error:
        return str(error), True
    except NewerFormatError as error:
        return str(error), False
    except OSError as error:
        return f"it cannot be read: {error.strerror}", False
    return None, False
