"""Open entries of the cache: verified, and held against removal."""

import contextlib
import errno
import hashlib
import os
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tuner.build_cache import packing
from tuner.build_cache.headers import DamagedEntryError, FileInfo, Header
from tuner.build_cache.keys import Key
from tuner.build_cache.packing import Packed
from tuner.errors import WorkError

_CHUNK_BYTES = 1 << 20
_LINK_UNSUPPORTED = (
    errno.EXDEV,
    errno.EPERM,
    errno.EACCES,
    errno.EMLINK,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
)


@dataclass(frozen=True)
class Blob:
    """A large file of an entry, open; ``path`` is None if it lies in no store."""

    descriptor: int
    path: Path | None


class Entry:
    """An entry that was verified when it was opened; any thread may read it.

    Garbage collection does not remove it before it is closed, unreferenced, or its process ends. It
    serves the content that was verified, whatever happens to the store.

    Args:
        body: The files inside it.
        blobs: Its blobs by name; closed with the entry.
        descriptors: Other files to close with it.
    """

    def __init__(
        self,
        header: Header,
        body: memoryview,
        blobs: Mapping[str, Blob],
        descriptors: tuple[int, ...] = (),
    ) -> None:
        self.header = header
        self._body = body
        self._blobs = dict(blobs)
        opened = (*descriptors, *(blob.descriptor for blob in blobs.values()))
        self._close = weakref.finalize(self, _close_all, opened)

    @property
    def key(self) -> Key:
        """The key it is stored under."""
        return self.header.key

    @property
    def digest(self) -> str:
        """The digest of its key."""
        return self.key.digest

    @property
    def files(self) -> Mapping[str, FileInfo]:
        """Size and checksum of every file by name."""
        return self.header.files

    @property
    def info(self) -> Mapping[str, Any]:
        """Information that its maker stored with it."""
        return self.header.info

    def read(self, name: str) -> bytes:
        """Return a file.

        Raises:
            KeyError: If it has no file of that name.
            WorkError: If the disk damaged it since the entry was opened.
        """
        if name not in self._blobs:
            return packing.content_of(self.header, self._body, name)
        content = b"".join(_chunks(self._open(name).descriptor))
        if hashlib.sha256(content).hexdigest() != self.files[name].sha256:
            raise _changed(self.key, name)
        return content

    def write_into(self, folder: Path) -> None:
        """Write all files into an existing folder, replacing files of the same names.

        Large files become read-only hard links where the file system allows it: altering one
        alters the entry, which is then recognised as damaged and made again.

        Raises:
            WorkError: If the disk damaged one since the entry was opened.
            OSError: If the folder cannot be written.
        """
        for name in self.files:
            path = folder / name
            path.unlink(missing_ok=True)
            if name in self._blobs:
                self._write_blob(name, path)
            else:
                path.write_bytes(self.read(name))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let garbage collection remove it; a second call does nothing."""
        self._close()

    def _open(self, name: str) -> Blob:
        if not self._close.alive:
            raise ValueError(f"the entry of {self.key.title or self.digest} is closed")
        return self._blobs[name]

    def _write_blob(self, name: str, path: Path) -> None:
        blob = self._open(name)
        if blob.path is not None and _link(blob.path, blob.descriptor, path):
            return
        digest = hashlib.sha256()
        with path.open("xb") as stream:
            for chunk in _chunks(blob.descriptor):
                digest.update(chunk)
                stream.write(chunk)
        if digest.hexdigest() != self.files[name].sha256:
            path.unlink()
            raise _changed(self.key, name)


def open_unstored(packed: Packed) -> Entry:
    """Open an entry that could not be stored; its blobs are the files of its maker.

    Raises:
        OSError: If one of them cannot be opened.
    """
    blobs: dict[str, Blob] = {}
    try:
        for name, path in packed.blobs.items():
            blobs[name] = Blob(os.open(path, os.O_RDONLY | os.O_CLOEXEC), None)
    except OSError:
        _close_all(tuple(blob.descriptor for blob in blobs.values()))
        raise
    return Entry(packed.header, packed.body, blobs)


def verify_blob(descriptor: int, name: str, file: FileInfo) -> None:
    """Compare an open file with its checksum.

    Raises:
        DamagedEntryError: If it differs.
    """
    digest, n_bytes = hashlib.sha256(), 0
    for chunk in _chunks(descriptor):
        digest.update(chunk)
        n_bytes += len(chunk)
    if n_bytes != file.n_bytes or digest.hexdigest() != file.sha256:
        raise DamagedEntryError(f"{name} does not have the checksum it was written with")


def verify_blob_file(path: Path, name: str, file: FileInfo) -> None:
    """Compare a file with its checksum.

    Raises:
        DamagedEntryError: If it differs.
        OSError: If it cannot be read.
    """
    with path.open("rb") as stream:
        verify_blob(stream.fileno(), name, file)


def _chunks(descriptor: int) -> Iterator[bytes]:
    """Read an open file from its start, without moving the position that threads share."""
    offset = 0
    while chunk := os.pread(descriptor, _CHUNK_BYTES, offset):
        offset += len(chunk)
        yield chunk


def _link(source: Path, descriptor: int, path: Path) -> bool:
    """Make a hard link to the file that was verified; False if that is not possible."""
    try:
        os.link(source, path)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in _LINK_UNSUPPORTED:
            raise
        return False
    if os.path.samestat(path.stat(), os.fstat(descriptor)):
        return True
    path.unlink()
    return False


def _changed(key: Key, name: str) -> WorkError:
    return WorkError(f"{name} of {key.title or key.digest} changed while it was in use; try again")


def _close_all(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
