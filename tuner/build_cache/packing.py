"""Packing a folder into an entry, and taking its files out again, verified."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import zstandard

from tuner.build_cache.headers import (
    PREFIX,
    Damaged,
    FileInfo,
    Header,
    Stored,
    read_header,
    read_prefix,
    written,
)
from tuner.build_cache.keys import Key, canonical
from tuner.build_cache.process_identity import this_process
from tuner.library.manifest import sha256_of

BLOB_BYTES = 1 << 20

# What is larger is never taken into memory whole, however well it compresses.
_MEMBER_LIMIT = 64 << 20
_SAMPLE_BYTES = 64 << 10
_HELPS = 0.9
_LEVEL = 3


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
            files[path.name] = FileInfo(sha256_of(path), path.stat().st_size)
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
    return Packed(header, written(header) + bytes(body), blobs)


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


@lru_cache(maxsize=1)
def _origin() -> str:
    try:
        ours = version("subgraph-tuner")
    except PackageNotFoundError:
        ours = "unknown"
    return f"{this_process().host}, tuner {ours}"
