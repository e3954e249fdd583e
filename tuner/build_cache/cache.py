"""The build cache: entries made once under a key, from a local tier or one that machines share."""

import logging
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tuner.build_cache import index, packing
from tuner.build_cache.entries import Entry, open_unstored
from tuner.build_cache.headers import Header
from tuner.build_cache.index import IndexedEntry
from tuner.build_cache.keys import Key, KeyDifference, differing
from tuner.build_cache.local import LocalTier
from tuner.build_cache.locks import KeyLock
from tuner.build_cache.packing import Packed
from tuner.library.signatures import NO_POLICY, SignaturePolicy, policy_of
from tuner.settings import Settings

if TYPE_CHECKING:
    from tuner.build_cache.remote import RemoteTier

_LOG = logging.getLogger(__name__)

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


@dataclass(frozen=True)
class Made:
    """An entry, and whether it was in the cache before."""

    entry: Entry
    hit: bool


class BuildLock:
    """The right of one thread, among all processes that share the store, to make an entry.

    Attributes:
        entry: The entry, if it appeared before the lock was acquired: there is nothing to make.
    """

    def __init__(self, cache: "Cache", key: Key, lock: KeyLock, entry: Entry | None) -> None:
        self.key = key
        self.entry = entry
        self._cache = cache
        self._lock = lock

    def keep(self, folder: Path, info: Mapping[str, Any]) -> Entry:
        """Store the files of a folder, and release the lock.

        If the store cannot be written, a warning says so and only this process has the entry.
        The folder may be removed after the call; its files must not change before.

        Raises:
            ValueError: If there is anything but files in the folder, or ``info`` is not JSON.
        """
        try:
            packed = packing.pack(self.key, folder, info)
            entry = self._cache.store(packed)
        finally:
            self.release()
        self._cache.share(packed)
        return entry

    def release(self) -> None:
        """Let a waiting process make the entry; a second call does nothing."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()


class Cache:
    """Entries by key, for any number of threads and processes at once.

    Args:
        root: Directory of the local tier; it need not exist, nor be writable.
        remote: URL of a second tier on any file system of fsspec; None for none.
        signatures: Signatures that the second tier gets and needs.
        warn: Receives each problem that the cache deals with once; logs it by default.

    Raises:
        RequestError: If the URL names an unknown file system.
    """

    def __init__(
        self,
        root: Path,
        remote: str | None = None,
        signatures: SignaturePolicy = NO_POLICY,
        *,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.root = root
        self._warnings: set[str] = set()
        self._emit = warn or _LOG.warning
        self.local = LocalTier(root, self._warn)
        self.remote = _remote_tier(remote, signatures, self._warn) if remote else None

    def find(self, key: Key) -> Entry | None:
        """Return an entry, verified; a damaged one is dropped with a warning.

        An entry that only the remote tier has is copied into the local one.
        """
        return self.local.find(key) or self._fetch(key)

    def try_lock(self, key: Key) -> BuildLock | None:
        """Acquire the right to make an entry; None while another process or thread has it.

        The entry may have appeared since the last look-up, see :attr:`BuildLock.entry`. If the
        lock cannot be written, the right is given to all, and the work may be done twice.
        """
        lock = self.local.lock_of(key.digest)
        try:
            if not lock.try_acquire():
                return None
        except OSError as error:
            _LOG.debug("%s is made without a lock: %s", key.digest, error)
        return BuildLock(self, key, lock, self.local.find(key, lock))

    def wait_for(self, key: Key) -> Entry | None:
        """Wait while another process makes an entry; None if it did not, and the caller may."""
        self.local.lock_of(key.digest).wait()
        return self.local.find(key)

    def get_or_make(self, key: Key, make: Callable[[Path], Mapping[str, Any]]) -> Made:
        """Return an entry, making it if it is missing: one process does, the others wait.

        Args:
            make: Fills a folder with files, and returns the information to keep, as JSON.
        """
        entry = self.local.find(key)
        while entry is None:
            lock = self.try_lock(key)
            if lock is not None:
                with lock:
                    return self._found_or_made(lock, make)
            entry = self.wait_for(key)
        return Made(entry, hit=True)

    def remember(self, key: Key, info: Mapping[str, Any]) -> None:
        """Store an entry without files, unless another process is about to.

        Raises:
            ValueError: If ``info`` is not JSON.
        """
        lock = self.try_lock(key)
        if lock is not None:
            with lock, tempfile.TemporaryDirectory() as folder:
                lock.keep(Path(folder), info).close()

    def new_folder(self) -> AbstractContextManager[Path]:
        """Make a temporary folder, in the store if that can be written."""
        return self.local.new_folder()

    def nearest(self, key: Key) -> KeyDifference | None:
        """Return how the entry that differs least from a key does; None if there is none."""
        return nearest(self.local, key)

    def store(self, packed: Packed) -> Entry:
        """Put an entry into the local tier; if that cannot be written, the process keeps it."""
        try:
            return self.local.commit(packed)
        except OSError as error:
            self._warn_unwritable(error)
            return open_unstored(packed)

    def share(self, packed: Packed) -> None:
        """Copy an entry to the remote tier, if there is one."""
        if self.remote is None:
            return
        try:
            with self.new_folder() as folder:
                self.remote.send(packed, folder)
        except OSError as error:
            self._warn_unwritable(error)

    def _found_or_made(self, lock: BuildLock, make: Callable[[Path], Mapping[str, Any]]) -> Made:
        entry = lock.entry or self._fetch(lock.key)
        if entry is not None:
            return Made(entry, hit=True)
        with self.new_folder() as folder:
            return Made(lock.keep(folder, make(folder)), hit=False)

    def _fetch(self, key: Key) -> Entry | None:
        if self.remote is None:
            return None
        try:
            with self.new_folder() as folder:
                packed = self.remote.fetch(key, folder)
                return None if packed is None else self.store(packed)
        except OSError as error:
            self._warn_unwritable(error)
            return None

    def _warn_unwritable(self, error: OSError) -> None:
        self._warn(f"cannot write the cache {self.root}: {error.strerror}; nothing is kept in it")

    def _warn(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.add(text)
            self._emit(text)


def _remote_tier(
    url: str, signatures: SignaturePolicy, warn: Callable[[str], None]
) -> "RemoteTier":
    # fsspec takes a while to import, and most caches have one tier.
    from tuner.build_cache.remote import RemoteTier

    return RemoteTier(url, warn, signatures)


_REPEAT_INTERVAL_SECS = 60.0

_logged_at: dict[str, float] = {}


def open_cache(settings: Settings) -> Cache:
    """Open the cache with both tiers; nothing is read or written yet.

    Raises:
        RequestError: If the remote tier or the keys of its signatures cannot be used.
    """
    signatures = policy_of(settings) if settings.cache_remote else NO_POLICY
    return Cache(settings.cache_dir, settings.cache_remote, signatures, warn=_warn)


def open_local(settings: Settings) -> Cache:
    """Open the local tier alone, for entries that name files or the processor of this machine."""
    return Cache(settings.cache_dir, warn=_warn)


def _warn(text: str) -> None:
    """Log a warning, unless another cache of this process did so a moment ago."""
    now = time.monotonic()
    for logged, at in list(_logged_at.items()):
        if now - at > _REPEAT_INTERVAL_SECS:
            _logged_at.pop(logged, None)
    if _logged_at.setdefault(text, now) == now:
        _LOG.warning("%s", text)
