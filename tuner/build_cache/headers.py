"""The form of an entry: one file, and beside it the large files that do not compress.

A prefix of fixed length holds a magic word, the version of the form, the length of the header,
the bytes of all files unpacked, and the sha256 of prefix and header. The header is JSON. What
follows it are the small files, each compressed where that helps. A large file that does not
compress lies beside the entry as it is, under a name made of its content, so that it can be
given away as a hard link and never stands for other content.
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

_HEADER_LIMIT = 64 << 20


class Damaged(Exception):  # noqa: N818  the name says what an entry is
    """An entry is not what was written; the text says in what."""


class Newer(Exception):  # noqa: N818  the name says what an entry is
    """An entry is of a form that a later version of this package writes."""


@dataclass(frozen=True)
class FileInfo:
    """A file of an entry; ``n_bytes`` is its own size, whatever the store makes of it."""

    sha256: str
    n_bytes: int


@dataclass(frozen=True)
class Stored:
    """How a file is kept: ``zstd`` or ``raw`` inside the entry, or as a ``blob`` beside it."""

    form: str
    offset: int
    n_bytes: int


@dataclass(frozen=True)
class Header:
    """What an entry says of itself."""

    kind: str
    parts: Mapping[str, Any]
    title: str
    created: float
    origin: str
    files: Mapping[str, FileInfo]
    stored: Mapping[str, Stored]
    info: Mapping[str, Any]
    body_sha256: str

    @cached_property
    def key(self) -> Key:
        """The key that it was written for."""
        return Key(self.kind, self.parts, self.title)

    @property
    def blobs(self) -> dict[str, FileInfo]:
        """The files that lie beside the entry."""
        return {n: self.files[n] for n, how in self.stored.items() if how.form == "blob"}

    @property
    def n_bytes(self) -> int:
        """Of all files together, unpacked."""
        return sum(file.n_bytes for file in self.files.values())


def blob_name(digest: str, file: FileInfo) -> str:
    """Name the blob of an entry after its content."""
    return f"{digest}.{file.sha256[:32]}.blob"


def read_header(data: bytes) -> tuple[Header, int]:
    """Read and check the header of an entry; return also where the files begin.

    Raises:
        Damaged: If anything is wrong.
        Newer: If it was written by a later version.
    """
    n_header, _ = read_prefix(data)
    body = PREFIX.size + n_header
    if len(data) < body:
        raise Damaged("it is cut off")
    digest = hashlib.sha256(data[: PREFIX.size - 32])
    digest.update(memoryview(data)[PREFIX.size : body])
    if digest.digest() != data[PREFIX.size - 32 : PREFIX.size]:
        raise Damaged("its header does not have the checksum it was written with")
    try:
        return _parse(json.loads(data[PREFIX.size : body])), body
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"its header makes no sense: {error}") from error


def read_prefix(data: bytes) -> tuple[int, int]:
    """Return the bytes of the header, and of all files unpacked.

    Raises:
        Damaged: If this is no entry.
        Newer: If it was written by a later version.
    """
    if len(data) < PREFIX.size:
        raise Damaged("it is cut off" if data else "it is empty")
    magic, found, n_header, n_bytes, _ = PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise Damaged("it is no entry of a cache")
    if found > VERSION:
        raise Newer(f"it has the form {found} of a later version, which knows more than {VERSION}")
    if n_header > _HEADER_LIMIT:
        raise Damaged("its header makes no sense")
    return n_header, n_bytes


def written(header: Header) -> bytes:
    """Return what an entry begins with: prefix and header."""
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
            raise ValueError(f"{name!r} is no name of a file")
        files[name] = FileInfo(str(file["sha256"]), int(file["n_bytes"]))
        stored[name] = Stored(**file["stored"])
        if stored[name].form not in ("zstd", "raw", "blob"):
            raise ValueError(f"{name} is kept in a form that is not known")
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
    header.key.text  # noqa: B018  it is a ValueError where there can be none
    return header
