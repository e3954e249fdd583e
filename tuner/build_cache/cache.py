"""The cache: what was made once under a key is found, here or in a store that many share."""

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tuner.build_cache import diff, packing
from tuner.build_cache.entries import Entry, kept_in_memory
from tuner.build_cache.keys import Difference, Key
from tuner.build_cache.local import LocalTier
from tuner.build_cache.locks import STALE_SECS, Lock, Pauses
from tuner.build_cache.packing import Packed

if TYPE_CHECKING:
    from tuner.build_cache.remote import RemoteTier

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Made:
    """An entry, and whether it was there before."""

    entry: Entry
    hit: bool


class BuildLock:
    """The right to make an entry, of one process among all that share the store.

    Attributes:
        key: Of the entry.
        found: The entry, if it appeared before the right was given: nothing is to be made.
    """

    def __init__(self, cache: "Cache", key: Key, lock: Lock | None, found: Entry | None) -> None:
        self.key = key
        self.found = found
        self._cache = cache
        self._lock = lock

    def keep(self, folder: Path, info: Mapping[str, Any]) -> Entry:
        """Store the files of a folder, and give the right back.

        A store that cannot be written is warned about; the entry is then this process' alone.
        The folder may be removed afterwards; until then its files must stay as they are.

        Raises:
            ValueError: If there is anything but files in the folder, or ``info`` is no JSON.
        """
        try:
            packed = packing.pack(self.key, folder, info)
            entry = self._cache.store(packed)
        finally:
            self.abandon()
        self._cache.share(packed)
        return entry

    def abandon(self) -> None:
        """Give the right back; whoever waits makes the entry. A second time is allowed."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abandon()


class Cache:
    """Entries by key, for any number of threads and processes at once.

    Args:
        root: Directory of the local tier; it need not exist, nor be writable.
        remote: URL of a second tier for any of fsspec's file systems; None for none.
        warn: Told once of everything that was wrong and is dealt with; logs it by default.
        stale_secs: The owner of a lock that shows no life for so long is dead.

    Raises:
        RequestError: If there can be no such remote tier.
    """

    def __init__(
        self,
        root: Path,
        remote: str | None = None,
        *,
        warn: Callable[[str], None] | None = None,
        stale_secs: float = STALE_SECS,
    ) -> None:
        self.root = root
        self._told: set[str] = set()
        self._tell = warn or _LOG.warning
        self.local = LocalTier(root, self._warn, stale_secs)
        self.remote = _remote_tier(remote, self._warn) if remote else None

    def find(self, key: Key) -> Entry | None:
        """Return an entry, verified; one that is damaged is dropped with a warning.

        One that only the remote tier has is copied into the local one.
        """
        return self.local.find(key) or self._fetch(key)

    def try_claim(self, key: Key) -> BuildLock | None:
        """Ask for the right to make an entry; None while another live process has it.

        Look at :attr:`BuildLock.found` first: the entry may have appeared meanwhile.
        """
        try:
            lock = self.local.locks.take(key.digest)
        except OSError as error:
            self._cannot_write(error)
            return BuildLock(self, key, None, self.local.find(key))
        if lock is None:
            return None
        return BuildLock(self, key, lock, self.local.find(key, lock))

    def wait_for(self, key: Key) -> Entry | None:
        """Wait while another process makes an entry; None if it did not, and it is our turn."""
        pauses = Pauses()
        while self.local.locks.is_held(key.digest):
            pauses.sleep()
        return self.local.find(key)

    def get_or_make(self, key: Key, make: Callable[[Path], Mapping[str, Any]]) -> Made:
        """Return an entry, making it if there is none: one process does, the others wait.

        Args:
            key: Of the entry.
            make: Fills a folder with files, and returns what is to be known of them, as JSON.
        """
        entry = self.local.find(key)
        while entry is None:
            claim = self.try_claim(key)
            if claim is not None:
                with claim:
                    return self._found_or_made(claim, make)
            entry = self.wait_for(key)
        return Made(entry, hit=True)

    def remember(self, key: Key, info: Mapping[str, Any]) -> None:
        """Store an entry without files, unless another process is about to.

        Raises:
            ValueError: If ``info`` is no JSON.
        """
        claim = self.try_claim(key)
        if claim is not None:
            with claim, tempfile.TemporaryDirectory() as folder:
                claim.keep(Path(folder), info).close()

    @contextmanager
    def new_folder(self) -> Iterator[Path]:
        """Make a temporary folder, in the store if that can be written."""
        with self.local.new_folder() as folder:
            yield folder

    def nearest(self, key: Key) -> Difference | None:
        """Return how the entry that differs least from a key does; None if there is no other."""
        return diff.nearest(self.local, key)

    def store(self, packed: Packed) -> Entry:
        """Put an entry into the local tier; if that cannot be written, the process keeps it."""
        try:
            return self.local.commit(packed)
        except OSError as error:
            self._cannot_write(error)
            return kept_in_memory(packed)

    def share(self, packed: Packed) -> None:
        """Copy an entry to the remote tier, if there is one."""
        if self.remote is None:
            return
        try:
            with self.new_folder() as folder:
                self.remote.send(packed, folder)
        except OSError as error:
            self._cannot_write(error)

    def _found_or_made(self, claim: BuildLock, make: Callable[[Path], Mapping[str, Any]]) -> Made:
        entry = claim.found or self._fetch(claim.key)
        if entry is not None:
            return Made(entry, hit=True)
        with self.new_folder() as folder:
            return Made(claim.keep(folder, make(folder)), hit=False)

    def _fetch(self, key: Key) -> Entry | None:
        if self.remote is None:
            return None
        try:
            with self.new_folder() as folder:
                packed = self.remote.fetch(key, folder)
                return None if packed is None else self.store(packed)
        except OSError as error:
            self._cannot_write(error)
            return None

    def _cannot_write(self, error: OSError) -> None:
        self._warn(f"cannot write the cache {self.root}: {error.strerror}; nothing is kept in it")

    def _warn(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(text)


def _remote_tier(url: str, warn: Callable[[str], None]) -> "RemoteTier":
    # fsspec takes a while to import, and most caches have one tier.
    from tuner.build_cache.remote import RemoteTier

    return RemoteTier(url, warn)
