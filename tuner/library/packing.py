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
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import zstandard

from tuner.library.keys import Key, canonical
from tuner.library.owners import this_process

VERSION = 1
MAGIC = b"tunerent"
PREFIX = struct.Struct("<8sIIQ32s")
BLOB_BYTES = 1 << 20

_HEADER_LIMIT = 64 << 20
# What is larger is never taken into memory whole, however well it compresses.
_MEMBER_LIMIT = 64 << 20
_SAMPLE_BYTES = 64 << 10
_HELPS = 0.9
_LEVEL = 3


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


@dataclass(frozen=True)
class Packed:
    """An entry ready to be written: its file, and what lies beside it by name of the file."""

    header: Header
    data: bytes
    blobs: Mapping[str, Path]

    @property
    def body(self) -> memoryview:
        """The files inside the entry."""
        n_header, _ = read_prefix(self.data)
        return memoryview(self.data)[PREFIX.size + n_header :]


def blob_name(digest: str, file: FileInfo) -> str:
    """Name the blob of an entry after its content."""
    return f"{digest}.{file.sha256[:32]}.blob"


def pack(key: Key, folder: Path, info: Mapping[str, Any]) -> Packed:
    """Read the files of a folder into the form of an entry.

    Raises:
        ValueError: If there is anything but files in the folder.
        OSError: If one cannot be read.
    """
    body = bytearray()
    files: dict[str, FileInfo] = {}
    stored: dict[str, Stored] = {}
    blobs: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_file():
            raise ValueError(f"an entry holds files and nothing else, {path} is none")
        if _is_blob(path):
            files[path.name] = FileInfo(_sha256_of(path), path.stat().st_size)
            stored[path.name] = Stored("blob", 0, files[path.name].n_bytes)
            blobs[path.name] = path
            continue
        content = path.read_bytes()
        form, packed = _compressed(content)
        files[path.name] = FileInfo(hashlib.sha256(content).hexdigest(), len(content))
        stored[path.name] = Stored(form, len(body), len(packed))
        body += packed
    header = Header(
        kind=key.kind,
        parts=json.loads(canonical(key.parts)),
        title=key.title,
        created=time.time(),
        origin=_origin(),
        files=files,
        stored=stored,
        info=json.loads(canonical(info)),
        body_sha256=hashlib.sha256(body).hexdigest(),
    )
    return Packed(header, _with_prefix(header) + bytes(body), blobs)


def unpack(data: bytes, key: Key) -> tuple[Header, memoryview]:
    """Read and check the entry of a key; return its header and the files inside it.

    Not only digests are compared: an entry of other parts with the same digest is no hit.

    Raises:
        Damaged: If anything is wrong.
        Newer: If it was written by a later version.
    """
    header, start = read_header(data)
    if header.key.text != key.text:
        raise Damaged("it was made for another key")
    body = memoryview(data)[start:]
    if hashlib.sha256(body).hexdigest() != header.body_sha256:
        raise Damaged("its content does not have the checksum it was written with")
    for how in header.stored.values():
        if how.form != "blob" and not 0 <= how.offset <= how.offset + how.n_bytes <= len(body):
            raise Damaged("a file in it lies outside of it")
    return header, body


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


def content_of(header: Header, body: memoryview, name: str) -> bytes:
    """Return one of the files inside an entry.

    Raises:
        Damaged: If it is not what was written.
    """
    how, file = header.stored[name], header.files[name]
    packed = body[how.offset : how.offset + how.n_bytes]
    content = bytes(packed) if how.form == "raw" else _decompressed(packed, file.n_bytes)
    if len(content) != file.n_bytes or hashlib.sha256(content).hexdigest() != file.sha256:
        raise Damaged(f"{name} does not have the checksum it was written with")
    return content


def _with_prefix(header: Header) -> bytes:
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


def _is_blob(path: Path) -> bool:
    n_bytes = path.stat().st_size
    if n_bytes < BLOB_BYTES:
        return False
    return n_bytes > _MEMBER_LIMIT or not _compresses(path, n_bytes)


def _compresses(path: Path, n_bytes: int) -> bool:
    """Judge by samples of its start, its middle and its end."""
    n_packed = 0
    with path.open("rb") as stream:
        for place in (0, (n_bytes - _SAMPLE_BYTES) // 2, n_bytes - _SAMPLE_BYTES):
            stream.seek(place)
            n_packed += len(_packer().compress(stream.read(_SAMPLE_BYTES)))
    return n_packed < _HELPS * 3 * _SAMPLE_BYTES


def _compressed(content: bytes) -> tuple[str, bytes]:
    packed = _packer().compress(content)
    return ("zstd", packed) if len(packed) < _HELPS * len(content) else ("raw", content)


def _packer() -> zstandard.ZstdCompressor:
    # One a call: a compressor must not be used by two threads at once.
    return zstandard.ZstdCompressor(level=_LEVEL)


def _decompressed(packed: memoryview, n_bytes: int) -> bytes:
    try:
        return zstandard.ZstdDecompressor().decompress(packed, max_output_size=max(n_bytes, 1))
    except zstandard.ZstdError as error:
        raise Damaged(f"a file in it cannot be decompressed: {error}") from error


def _sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@lru_cache(maxsize=1)
def _origin() -> str:
    try:
        ours = version("subgraph-tuner")
    except PackageNotFoundError:
        ours = "unknown"
    return f"{this_process().host}, tuner {ours}"
