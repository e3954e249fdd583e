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
from tuner.build_cache.headers import DamagedEntryError, Header, NewerFormatError
from tuner.build_cache.keys import Key
from tuner.build_cache.locks import KeyLock
from tuner.build_cache.packing import Packed
from tuner.files.process_folder import process_folder
from tuner.files.process_tags import process_tag

LAYOUT = "v1"
TOUCH_INTERVAL_SECS = 3600.0
_HOLD_TIMEOUT_SECS = 1.0
# Attempts of a look-up to open an entry that other processes keep replacing.
_MAX_OPEN_ATTEMPTS = 10
_COPY_BYTES = 1 << 18
# A disk with less free space counts as full; entries are then made in the system's folder.
_MIN_FREE_BYTES = 64 << 20


class _ReplacedError(Exception):
    """An entry was removed or replaced after it was opened and before it was held."""


class LocalTier:
    """Entries as files ``ROOT/v1/KIND/DD/DIGEST``, where DD are the first digits of the digest.

    Args:
        root: The directory; it need not exist.
        warn: Receives each problem that the store deals with.
    """

    def __init__(self, root: Path, warn: Callable[[str], None]) -> None:
        self.root = root
        self.entries = root / LAYOUT
        self.scratch = self.entries / ".tmp"
        self.locks = self.entries / ".locks"
        self._warn = warn

    def path_of(self, kind: str, digest: str) -> Path:
        """Return the path of an entry, which need not exist."""
        return self.entries / kind / digest[:2] / digest

    def lock_of(self, digest: str) -> KeyLock:
        """Return the lock of a key, not acquired."""
        return KeyLock(self.locks / f"{digest}.lock")

    def find(self, key: Key, lock: KeyLock | None = None, *, used: bool = True) -> Entry | None:
        """Open an entry; a damaged one is dropped with a warning.

        Args:
            lock: The lock of the key, if the caller holds it.
            used: Count the look-up as a use.
        """
        for _ in range(_MAX_OPEN_ATTEMPTS):
            with contextlib.suppress(_ReplacedError):
                return self._find(key, lock, used=used)
        return None

    def _find(self, key: Key, lock: KeyLock | None, *, used: bool) -> Entry | None:
        path = self.path_of(key.kind, key.digest)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._warn(f"cannot read {path}: {error.strerror}; it is made again")
            return None
        try:
            entry = self._open(key, path, descriptor)
            if not used or entry is None:
                return entry
            if not 0 <= time.time() - os.fstat(descriptor).st_mtime < TOUCH_INTERVAL_SECS:
                with contextlib.suppress(OSError):
                    os.utime(descriptor)
            return entry
        except _ReplacedError:
            os.close(descriptor)
            raise
        except NewerFormatError as error:
            self._warn(f"{path} is not used: {error}")
        except DamagedEntryError as error:
            self._warn(f"{path} is damaged and is dropped: {error}")
            self.drop(key.kind, key.digest, os.fstat(descriptor), lock)
        except OSError as error:
            self._warn(f"cannot read {path}: {error.strerror}; it is made again")
        os.close(descriptor)
        return None

    def commit(self, packed: Packed) -> Entry:
        """Store an entry, whole or not at all, also if the power fails.

        Raises:
            OSError: If it cannot be written; no part of it is found then.
        """
        digest = packed.header.key.digest
        path = self.path_of(packed.header.kind, digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        blobs: dict[str, Blob] = {}
        try:
            for name, source in packed.blobs.items():
                blob_path = path.parent / headers.blob_name(digest, packed.header.files[name])
                blobs[name] = Blob(self._move_in(blob_path, source, 0o444), blob_path)
            descriptor = self._move_in(path, packed.data)
        except OSError:
            for blob in blobs.values():
                os.close(blob.descriptor)
            raise
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return Entry(packed.header, packed.body, blobs, (descriptor,))

    def drop(
        self, kind: str, digest: str, status: os.stat_result, lock: KeyLock | None = None
    ) -> bool:
        """Remove the entry with a file status; False if it was replaced or cannot be removed.

        The caller holds ``lock``, or the key is locked here: another process may be replacing the
        entry, or may have done so.
        """
        own = self.lock_of(digest)
        try:
            if lock is None and not own.try_acquire():
                return False
            path = self.path_of(kind, digest)
            if not os.path.samestat(path.lstat(), status):
                return False
            for file in (path, *path.parent.glob(f"{path.name}.*.blob")):
                if file.is_dir():
                    self._set_aside(file)
                else:
                    file.unlink(missing_ok=True)
            return True
        except OSError:
            return False
        finally:
            own.release()

    @contextmanager
    def new_folder(self) -> Iterator[Path]:
        """Make a temporary folder, in the store if that can be written."""
        folder = self.make_folder()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def make_folder(self) -> Path:
        """Make a folder as :meth:`new_folder` does, which the caller removes."""
        folder = self.scratch / f"{process_tag()}.{secrets.token_hex(8)}"
        try:
            folder.mkdir(parents=True)
            if shutil.disk_usage(folder).free < _MIN_FREE_BYTES:
                folder.rmdir()
                return Path(tempfile.mkdtemp(dir=process_folder()))
        except OSError:
            return Path(tempfile.mkdtemp(dir=process_folder()))
        return folder

    def _open(self, key: Key, path: Path, descriptor: int) -> Entry | None:
        if not _hold(descriptor):
            os.close(descriptor)
            return None
        if os.fstat(descriptor).st_nlink == 0:
            raise _ReplacedError
        data = read_all(descriptor, os.fstat(descriptor).st_size)
        header, body = packing.unpack(data, key)
        blobs = open_blobs(header, path.parent, key.digest)
        return Entry(header, body, blobs, (descriptor,))

    def _move_in(self, path: Path, source: bytes | Path, mode: int = 0o644) -> int:
        """Write a temporary file and rename it; return it open and held."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        temporary = self.scratch / f"{process_tag()}.{secrets.token_hex(8)}"
        descriptor = self._write(temporary, source, mode)
        with _removed_on_error(temporary, descriptor):
            os.fsync(descriptor)
            _hold(descriptor)
            try:
                temporary.replace(path)
            except IsADirectoryError:
                self._set_aside(path)
                temporary.replace(path)
        return descriptor

    def _write(self, temporary: Path, source: bytes | Path, mode: int) -> int:
        """Write a file, or link it if it was made in this store; return it open."""
        if isinstance(source, Path) and source.parent.parent == self.scratch:
            with contextlib.suppress(OSError):
                os.link(source, temporary)
                temporary.chmod(mode)
                return os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
            temporary.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, mode)
        with (
            _removed_on_error(temporary, descriptor),
            open(descriptor, "wb", closefd=False) as stream,
        ):
            if isinstance(source, Path):
                with source.open("rb") as content:
                    shutil.copyfileobj(content, stream, _COPY_BYTES)
            else:
                stream.write(source)
        return descriptor

    def _set_aside(self, folder: Path) -> None:
        aside = self.scratch / f"{process_tag()}.{secrets.token_hex(8)}"
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _removed_on_error(path: Path, descriptor: int) -> Iterator[None]:
    """Close and remove an open file if the block raises."""
    try:
        yield
    except BaseException:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def read_all(descriptor: int, n_bytes: int) -> bytes:
    """Read an open file of a known size; a file that was cut since gives fewer bytes.

    Raises:
        DamagedEntryError: If it is a folder.
    """
    try:
        parts = [os.pread(descriptor, max(n_bytes, 1), 0)]
        while len(parts[-1]) and sum(map(len, parts)) < n_bytes:
            parts.append(os.pread(descriptor, n_bytes, sum(map(len, parts))))
    except IsADirectoryError as error:
        raise DamagedEntryError("it is a folder") from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def open_blobs(header: Header, folder: Path, digest: str) -> Mapping[str, Blob]:
    """Open and verify the large files of an entry.

    Raises:
        DamagedEntryError: If one is missing, or not as it was written.
        OSError: If one cannot be read.
    """
    blobs: dict[str, Blob] = {}
    try:
        for name, file in header.blobs.items():
            path = folder / headers.blob_name(digest, file)
            try:
                blobs[name] = Blob(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), path)
                verify_blob(blobs[name].descriptor, name, file)
            except FileNotFoundError as error:
                raise DamagedEntryError(f"{name} is missing") from error
            except IsADirectoryError as error:
                raise DamagedEntryError(f"{name} is a folder") from error
    except BaseException:
        for blob in blobs.values():
            os.close(blob.descriptor)
        raise
    return blobs


def _hold(descriptor: int) -> bool:
    """Hold an open entry against removal; False if another process is removing it."""
    deadline = time.monotonic() + _HOLD_TIMEOUT_SECS
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
