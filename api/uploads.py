"""Uploaded models: kept under the hash of their bytes, never opened for what is in them."""

import hashlib
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from api.errors import Problem, wrong_field
from tuner.jobs.submission import upload_path, upload_reference

_CHUNK = 2**20
_UNFINISHED = ".upload-"
# Nobody uploads for so long: what is older was left by a process that was killed.
_LEFT_SECS = 6 * 3600
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
_ADVICE = (
    "Export the network with torch.onnx.export and send the .onnx file; "
    "a .pt2 or .pt file is a pickle, which could run anything."
)


@dataclass(frozen=True)
class Staged:
    """A model that was received whole, beside its place; ``reference`` names it in a request."""

    path: Path
    place: Path
    sha256: str
    reference: str
    name: str

    def keep(self) -> None:
        """Move it to its place: call this in the transaction that refers to it."""
        self.path.replace(self.place)
        descriptor = os.open(self.place.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def discard(self) -> None:
        """Remove what was not moved."""
        self.path.unlink(missing_ok=True)


def prepare_folders(data_dir: Path) -> Path:
    """Make the folders of uploads; returns that for temporary files, which lie beside them.

    /tmp may be memory, and too small for a model.
    """
    for name in ("uploads", "archives", "tmp"):
        (data_dir / name).mkdir(parents=True, exist_ok=True)
    for left in (data_dir / "uploads").glob(f"{_UNFINISHED}*"):
        if time.time() - left.stat().st_mtime > _LEFT_SECS:
            left.unlink(missing_ok=True)
    return data_dir / "tmp"


def stage(file: BinaryIO, filename: str, data_dir: Path) -> Staged:
    """Copy an upload beside its place, and hash it on the way.

    Args:
        file: The upload, from its start.
        filename: As the client calls it; says what format it is, and names the network.
        data_dir: The data directory.

    Raises:
        Problem: If it is empty, or in a format that is not taken.
        OSError: If there is no room; nothing is left behind.
    """
    _check_format(file, filename)
    folder = data_dir / "uploads"
    path = folder / f"{_UNFINISHED}{secrets.token_hex(8)}"
    try:
        digest = _copy(file, path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    place = upload_path(data_dir, digest)
    return Staged(path, place, digest, upload_reference(digest), _stem(filename))


def _copy(file: BinaryIO, path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("xb") as copy:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            copy.write(chunk)
        copy.flush()
        os.fsync(copy.fileno())
    return digest.hexdigest()


def _check_format(file: BinaryIO, filename: str) -> None:
    suffix = Path(filename).suffix.lower()
    start = file.read(4)
    file.seek(0)
    shown = "".join(char if char.isprintable() else "?" for char in filename)[:100]
    if suffix != ".onnx":
        raise _wrong_model("unsupported-model", f"{shown!r} is not an .onnx file")
    if not start:
        raise _wrong_model("bad-model", f"{shown!r} is empty", "Export the model again.")
    if start == _ZIP or (start[:1] == _PICKLE and start[1:2] in b"\x02\x03\x04\x05"):
        raise _wrong_model("unsupported-model", f"{shown!r} is a pickle or an archive")


def _wrong_model(slug: str, message: str, advice: str = _ADVICE) -> Problem:
    return wrong_field("model", message, slug=slug, advice=advice)


def _stem(filename: str) -> str:
    """Name a network by its file; no character of it ever gets into a path of ours."""
    stem = filename.replace("\\", "/").rpartition("/")[2]
    stem = "".join(char for char in stem if char.isprintable())[:200]
    return stem[: -len(".onnx")] if stem.lower().endswith(".onnx") else stem
