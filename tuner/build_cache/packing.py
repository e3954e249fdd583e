"""Pack a folder into an entry, and unpack its files, verified."""

import hashlib
import json
import platform
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
    DamagedEntryError,
    FileInfo,
    Header,
    StoredFile,
    read_header,
    read_prefix,
    serialise,
)
from tuner.build_cache.keys import Key, canonical
from tuner.library.manifest import sha256_of

MIN_BLOB_BYTES = 1 << 20

# A larger file is a blob however well it compresses: it is never held in memory whole.
_MAX_MEMBER_BYTES = 64 << 20
_SAMPLE_BYTES = 64 << 10
# Largest ratio of compressed to raw size at which compression is worth it.
_MAX_RATIO = 0.9
_LEVEL = 3


@dataclass(frozen=True)
class Packed:
    """An entry ready to be written: the content of its file, and the paths of its blobs by name."""

    header: Header
    data: bytes
    blobs: Mapping[str, Path]

    @property
    def body(self) -> memoryview:
        """The files inside the entry."""
        n_header, _ = read_prefix(self.data)
        return memoryview(self.data)[PREFIX.size + n_header :]


def pack(key: Key, folder: Path, info: Mapping[str, Any]) -> Packed:
    """Read the files of a folder into the format of an entry.

    Raises:
        ValueError: If there is anything but files in the folder.
        OSError: If one cannot be read.
    """
    body = bytearray()
    files: dict[str, FileInfo] = {}
    stored: dict[str, StoredFile] = {}
    blobs: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_file():
            raise ValueError(f"an entry holds files and nothing else, {path} is not a file")
        if _is_blob(path):
            files[path.name] = FileInfo(sha256_of(path), path.stat().st_size)
            stored[path.name] = StoredFile("blob", 0, files[path.name].n_bytes)
            blobs[path.name] = path
            continue
        content = path.read_bytes()
        packed = _packer().compress(content)
        form, packed = (
            ("zstd", packed) if len(packed) < _MAX_RATIO * len(content) else ("raw", content)
        )
        files[path.name] = FileInfo(hashlib.sha256(content).hexdigest(), len(content))
        stored[path.name] = StoredFile(form, len(body), len(packed))
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
    return Packed(header, serialise(header) + bytes(body), blobs)


def unpack(data: bytes, key: Key) -> tuple[Header, memoryview]:
    """Read and check the entry of a key; return its header and the files inside it.

    Keys are compared as a whole: an entry of other parts with the same digest is not a hit.

    Raises:
        DamagedEntryError: If anything is wrong.
        NewerFormatError: If it was written by a later version.
    """
    header, start = read_header(data)
    if header.key.text != key.text:
        raise DamagedEntryError("it was made for another key")
    body = memoryview(data)[start:]
    if hashlib.sha256(body).hexdigest() != header.body_sha256:
        raise DamagedEntryError("its content does not have the checksum it was written with")
    for stored in header.stored.values():
        end = stored.offset + stored.n_bytes
        if stored.form != "blob" and not 0 <= stored.offset <= end <= len(body):
            raise DamagedEntryError("a file in it lies outside of it")
    return header, body


def content_of(header: Header, body: memoryview, name: str) -> bytes:
    """Return one of the files inside an entry.

    Raises:
        DamagedEntryError: If it is not as it was written.
    """
    stored, file = header.stored[name], header.files[name]
    packed = body[stored.offset : stored.offset + stored.n_bytes]
    content = bytes(packed) if stored.form == "raw" else _decompress(packed, file.n_bytes)
    if len(content) != file.n_bytes or hashlib.sha256(content).hexdigest() != file.sha256:
        raise DamagedEntryError(f"{name} does not have the checksum it was written with")
    return content


def _is_blob(path: Path) -> bool:
    n_bytes = path.stat().st_size
    if n_bytes < MIN_BLOB_BYTES:
        return False
    return n_bytes > _MAX_MEMBER_BYTES or not _compresses(path, n_bytes)


def _compresses(path: Path, n_bytes: int) -> bool:
    """Estimate by samples of the start, the middle and the end whether compression is worth it."""
    n_packed = 0
    with path.open("rb") as stream:
        for offset in (0, (n_bytes - _SAMPLE_BYTES) // 2, n_bytes - _SAMPLE_BYTES):
            stream.seek(offset)
            n_packed += len(_packer().compress(stream.read(_SAMPLE_BYTES)))
    return n_packed < _MAX_RATIO * 3 * _SAMPLE_BYTES


def _packer() -> zstandard.ZstdCompressor:
    # One per call: a compressor must not be used by two threads at once.
    return zstandard.ZstdCompressor(level=_LEVEL)


def _decompress(packed: memoryview, n_bytes: int) -> bytes:
    try:
        return zstandard.ZstdDecompressor().decompress(packed, max_output_size=max(n_bytes, 1))
    except zstandard.ZstdError as error:
        raise DamagedEntryError(f"a file in it cannot be decompressed: {error}") from error


@lru_cache(maxsize=1)
def _origin() -> str:
    try:
        installed = version("subgraph-tuner")
    except PackageNotFoundError:
        installed = "unknown"
    return f"{platform.node()}, tuner {installed}"
