"""The format of an entry: one file, and a blob for each large file that does not compress.

A prefix of fixed length holds a magic word, the version of the format, the length of the header,
the bytes of all files unpacked, and the sha256 of prefix and header. The header is JSON. The small
files follow it, each compressed where that helps. A blob is a file of its own in the same folder,
unchanged, under a name made of its content: it can be given away as a hard link, and its name never
stands for other content.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tuner.build_cache.keys import Key, canonical

VERSION = 1
MAGIC = b"tunerent"
PREFIX = struct.Struct("<8sIIQ32s")

_MAX_HEADER_BYTES = 64 << 20


class DamagedEntryError(Exception):
    """An entry is not as it was written; the text says what is wrong."""


class NewerFormatError(Exception):
    """An entry has a format that a later version of this package writes."""


@dataclass(frozen=True)
class FileInfo:
    """A file of an entry, with its unpacked size."""

    sha256: str
    n_bytes: int


@dataclass(frozen=True)
class StoredFile:
    """The storage of a file: ``zstd`` or ``raw`` inside the entry, or a ``blob`` of its own."""

    form: str
    offset: int
    n_bytes: int


@dataclass(frozen=True)
class Header:
    """The description that an entry begins with.

    Attributes:
        kind: Kind of its key.
        parts: Parts of its key.
        title: Text for people.
        created: Time it was made, seconds since 1970.
        origin: Host and version of the tuner that made it.
        files: Size and checksum of every file by name.
        stored: Storage of every file by name.
        info: JSON of its maker.
        body_sha256: Checksum of what follows the header.
    """

    kind: str
    parts: Mapping[str, Any]
    title: str
    created: float
    origin: str
    files: Mapping[str, FileInfo]
    stored: Mapping[str, StoredFile]
    info: Mapping[str, Any]
    body_sha256: str

    @cached_property
    def key(self) -> Key:
        """The key that the entry was written for."""
        return Key(self.kind, self.parts, self.title)

    @property
    def blobs(self) -> dict[str, FileInfo]:
        """The files that are blobs, by name."""
        return {
            name: self.files[name] for name, stored in self.stored.items() if stored.form == "blob"
        }

    @property
    def n_bytes(self) -> int:
        """Unpacked size of all files together."""
        return sum(file.n_bytes for file in self.files.values())


def blob_name(digest: str, file: FileInfo) -> str:
    """Name the blob of an entry after its content."""
    return f"{digest}.{file.sha256[:32]}.blob"


def signature_name(digest: str, data: bytes) -> str:
    """Return the name of the file with the signature of an entry's content.

    Another content of the same key has another name: two machines may write at once.
    """
    return f"{digest}.{hashlib.sha256(data).hexdigest()[:32]}.sig"


def read_header(data: bytes) -> tuple[Header, int]:
    """Read and check the header of an entry; return it and the offset of the files.

    Raises:
        DamagedEntryError: If anything is wrong.
        NewerFormatError: If it was written by a later version.
    """
    n_header, _ = read_prefix(data)
    body = PREFIX.size + n_header
    if len(data) < body:
        raise DamagedEntryError("it is cut off")
    digest = hashlib.sha256(data[: PREFIX.size - 32])
    digest.update(memoryview(data)[PREFIX.size : body])
    if digest.digest() != data[PREFIX.size - 32 : PREFIX.size]:
        raise DamagedEntryError("its header does not have the checksum it was written with")
    try:
        return _parse(json.loads(data[PREFIX.size : body])), body
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedEntryError(f"its header is invalid: {error}") from error


def read_prefix(data: bytes) -> tuple[int, int]:
    """Return the length of the header, and of all files unpacked, in bytes.

    Raises:
        DamagedEntryError: If this is not an entry.
        NewerFormatError: If it was written by a later version.
    """
    if len(data) < PREFIX.size:
        raise DamagedEntryError("it is cut off" if data else "it is empty")
    magic, version, n_header, n_bytes, _ = PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise DamagedEntryError("it is not an entry of a cache")
    if version > VERSION:
        raise NewerFormatError(
            f"it has format {version} of a later version; this one reads formats up to {VERSION}"
        )
    if n_header > _MAX_HEADER_BYTES:
        raise DamagedEntryError("its header is invalid")
    return n_header, n_bytes


def serialise(header: Header) -> bytes:
    """Serialise prefix and header, which an entry begins with."""
    value = {
        "kind": header.kind,
        "parts": header.parts,
        "title": header.title,
        "created": header.created,
        "origin": header.origin,
        "files": {
            name: {**vars(file), "stored": vars(header.stored[name])}
            for name, file in header.files.items()
        },
        "info": header.info,
        "body_sha256": header.body_sha256,
    }
    text = canonical(value).encode()
    start = PREFIX.pack(MAGIC, VERSION, len(text), header.n_bytes, bytes(32))[:-32]
    return start + hashlib.sha256(start + text).digest() + text


def _parse(raw: Mapping[str, Any]) -> Header:
    files, stored = {}, {}
    for name, file in raw["files"].items():
        if not name or name in (".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"{name!r} is not a file name")
        files[name] = FileInfo(str(file["sha256"]), int(file["n_bytes"]))
        stored[name] = StoredFile(**file["stored"])
        if stored[name].form not in ("zstd", "raw", "blob"):
            raise ValueError(f"{name} is stored in an unknown form")
    header = Header(
        kind=raw["kind"],
        parts=dict(raw["parts"].items()),
        title=str(raw["title"]),
        created=float(raw["created"]),
        origin=str(raw["origin"]),
        files=files,
        stored=stored,
        info=dict(raw["info"].items()),
        body_sha256=str(raw["body_sha256"]),
    )
    header.key.text  # noqa: B018  raises ValueError if it is not JSON
    return header
