"""The local tier of the cache: a directory of entries, shared by all processes that name it."""

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tuner.build_cache import headers, packing
from tuner.build_cache.entries import Blob, Entry, verify_blob
from tuner.build_cache.headers import Damaged, Header, Newer
from tuner.build_cache.keys import Key
from tuner.build_cache.locks import STALE_SECS, Lock, Locks
from tuner.build_cache.packing import Packed
from tuner.build_cache.process_identity import this_process

LAYOUT = "v1"
TOUCH_EVERY_SECS = 3600.0
_HOLD_SECS = 1.0
# So often a look-up may meet an entry that is just written anew.
_REOPENINGS = 10
_READ_BYTES = 1 << 18
# Less room than this is a full disk: what is made elsewhere can still be used.
_ROOM_BYTES = 64 << 20


class _Replaced(Exception):  # noqa: N818  the name says what happened to it
    """An entry was removed, or written anew, between its opening and its being held."""


class LocalTier:
    """Entries as files ``ROOT/v1/KIND/DD/DIGEST``, where DD is how the digest begins.

    Args:
        root: The directory; it need not exist.
        warn: Told of everything that was wrong and is dealt with.
        stale_secs: When the owner of a lock counts as dead, see :class:`Locks`.
    """

    def __init__(
        self, root: Path, warn: Callable[[str], None], stale_secs: float = STALE_SECS
    ) -> None:
        self.root = root
        self.entries = root / LAYOUT
        self.scratch = self.entries / ".tmp"
        self.locks = Locks(self.entries / ".locks", self.scratch, stale_secs)
        self._warn = warn

    def path_of(self, kind: str, digest: str) -> Path:
        """Return where an entry is, or would be."""
        return self.entries / kind / digest[:2] / digest

    def find(self, key: Key, lock: Lock | None = None, *, used: bool = True) -> Entry | None:
        """Open an entry; one that is not what was written is dropped with a warning.

        Args:
            key: What to find.
            lock: The lock of the key, if the caller holds it.
            used: Whether that counts as a use.
        """
        for _ in range(_REOPENINGS):
            with contextlib.suppress(_Replaced):
                return self._found(key, lock, used=used)
        return None

    def _found(self, key: Key, lock: Lock | None, *, used: bool) -> Entry | None:
        path = self.path_of(key.kind, key.digest)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._warn(f"cannot read {path}: {error.strerror}; it is made again")
            return None
        try:
            entry = self._opened(key, path, descriptor)
            if used and entry is not None:
                _touch(descriptor)
            return entry
        except _Replaced:
            os.close(descriptor)
            raise
        except Newer as error:
            self._warn(f"{path} is not used: {error}")
        except Damaged as error:
            self._warn(f"{path} is damaged and is dropped: {error}")
            self.drop(key.kind, key.digest, os.fstat(descriptor), lock)
        except OSError as error:
            self._warn(f"cannot read {path}: {error.strerror}; it is made again")
        os.close(descriptor)
        return None

    def commit(self, packed: Packed) -> Entry:
        """Store an entry: it is there whole or not at all, also after a loss of power.

        Raises:
            OSError: If it cannot be written; nothing of it is found then.
        """
        digest = packed.header.key.digest
        path = self.path_of(packed.header.kind, digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        blobs: dict[str, Blob] = {}
        try:
            for name, source in packed.blobs.items():
                place = path.parent / headers.blob_name(digest, packed.header.files[name])
                blobs[name] = Blob(self._move_in(place, source, 0o444), place)
            descriptor = self._move_in(path, packed.data)
        except OSError:
            for blob in blobs.values():
                os.close(blob.descriptor)
            raise
        _sync_folder(path.parent)
        return Entry(packed.header, packed.body, blobs, (descriptor,))

    def drop(self, kind: str, digest: str, found: os.stat_result, lock: Lock | None = None) -> bool:
        """Remove the entry that ``found`` describes; False if it is there no more, or stays.

        Under the lock of its key: somebody may be writing it anew, or even have written it.
        """
        try:
            held = lock or self.locks.take(digest)
        except OSError:
            return False
        if held is None:
            return False
        try:
            return self._remove(self.path_of(kind, digest), found)
        except OSError:
            return False
        finally:
            if lock is None:
                held.release()

    @contextmanager
    def new_folder(self) -> Iterator[Path]:
        """Make a temporary folder, in the store if that can be written."""
        folder = self._new_folder()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _new_folder(self) -> Path:
        folder = self.scratch / f"{this_process().tag}.{secrets.token_hex(8)}"
        try:
            folder.mkdir(parents=True)
            if shutil.disk_usage(folder).free < _ROOM_BYTES:
                folder.rmdir()
                return Path(tempfile.mkdtemp(prefix="tuner-"))
        except OSError:
            return Path(tempfile.mkdtemp(prefix="tuner-"))
        return folder

    def _opened(self, key: Key, path: Path, descriptor: int) -> Entry | None:
        if not _held(descriptor):
            os.close(descriptor)
            return None
        if os.fstat(descriptor).st_nlink == 0:
            raise _Replaced
        data = read_all(descriptor, os.fstat(descriptor).st_size)
        header, body = packing.unpack(data, key)
        blobs = open_blobs(header, path.parent, key.digest)
        return Entry(header, body, blobs, (descriptor,))

    def _move_in(self, path: Path, source: bytes | Path, mode: int = 0o644) -> int:
        """Put a file beside its place, and then move it there; return it open and held."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        beside = self.scratch / f"{this_process().tag}.{secrets.token_hex(8)}"
        descriptor = self._laid(beside, source, mode)
        with _undone(beside, descriptor):
            os.fsync(descriptor)
            _held(descriptor)
            self._replace(beside, path)
        return descriptor

    def _laid(self, beside: Path, source: bytes | Path, mode: int) -> int:
        """Write a file, or link it if it was made in this store; return it open."""
        if isinstance(source, Path) and source.parent.parent == self.scratch:
            with contextlib.suppress(OSError):
                os.link(source, beside)
                beside.chmod(mode)
                return os.open(beside, os.O_RDONLY | os.O_CLOEXEC)
            beside.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(beside, flags, mode)
        with _undone(beside, descriptor), open(descriptor, "wb", closefd=False) as stream:
            if isinstance(source, Path):
                with source.open("rb") as content:
                    shutil.copyfileobj(content, stream, _READ_BYTES)
            else:
                stream.write(source)
        return descriptor

    def _replace(self, beside: Path, path: Path) -> None:
        try:
            beside.replace(path)
        except IsADirectoryError:
            self._set_aside(path)
            beside.replace(path)

    def _set_aside(self, folder: Path) -> None:
        aside = self.scratch / f"{this_process().tag}.{secrets.token_hex(8)}"
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    def _remove(self, path: Path, found: os.stat_result) -> bool:
        if not os.path.samestat(path.lstat(), found):
            return False
        for each in (path, *path.parent.glob(f"{path.name}.*.blob")):
            if each.is_dir():
                self._set_aside(each)
            else:
                each.unlink(missing_ok=True)
        return True


@contextmanager
def _undone(path: Path, descriptor: int) -> Iterator[None]:
    """Close and remove an open file if what is done with it fails."""
    try:
        yield
    except BaseException:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def read_all(descriptor: int, n_bytes: int) -> bytes:
    """Read an open file of which the size is known.

    Raises:
        Damaged: If it is a folder, or shorter by now.
    """
    try:
        parts = [os.pread(descriptor, max(n_bytes, 1), 0)]
        while len(parts[-1]) and sum(map(len, parts)) < n_bytes:
            parts.append(os.pread(descriptor, n_bytes, sum(map(len, parts))))
    except IsADirectoryError as error:
        raise Damaged("it is a folder") from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def open_blobs(header: Header, folder: Path, digest: str) -> Mapping[str, Blob]:
    """Open and verify what lies beside an entry.

    Raises:
        Damaged: If anything is missing or not what was written.
        OSError: If it cannot be read.
    """
    blobs: dict[str, Blob] = {}
    try:
        for name, file in header.blobs.items():
            path = folder / headers.blob_name(digest, file)
            try:
                blobs[name] = Blob(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), path)
                verify_blob(blobs[name].descriptor, name, file)
            except FileNotFoundError as error:
                raise Damaged(f"{name} is missing") from error
            except IsADirectoryError as error:
                raise Damaged(f"{name} is a folder") from error
    except BaseException:
        for blob in blobs.values():
            os.close(blob.descriptor)
        raise
    return blobs


def _held(descriptor: int) -> bool:
    """Hold an open entry against removal; False if it cannot be, for somebody removes it."""
    deadline = time.monotonic() + _HOLD_SECS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        except OSError:
            return True
        else:
            return True


def _touch(descriptor: int) -> None:
    """Note the use of an entry, at most once an hour; what cannot be noted is not."""
    if not 0 <= time.time() - os.fstat(descriptor).st_mtime < TOUCH_EVERY_SECS:
        with contextlib.suppress(OSError):
            os.utime(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
