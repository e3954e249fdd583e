"""Uploaded models, stored under the hash of their bytes and never parsed here."""

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
# Older files were left by a killed process, because no upload takes that long.
_MAX_UPLOAD_SECS = 6 * 3600
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
_ADVICE = (
    "Export the network with torch.onnx.export and send the .onnx file; "
    "a .pt2 or .pt file is a pickle, which can execute code."
)


@dataclass(frozen=True)
class Staged:
    """A completely received model that is not in use yet.

    Attributes:
        path: Path of the temporary copy.
        final_path: Path under the hash of its bytes.
        sha256: Hash of its bytes.
        reference: Name of the model in a request.
        name: Name of the network, from the file name.
    """

    path: Path
    final_path: Path
    sha256: str
    n_bytes: int
    reference: str
    name: str

    def keep(self) -> None:
        """Move the copy to its final path; call this in the transaction that refers to it."""
        os.utime(self.path)  # retention spares young files, whose job may not be stored yet
        self.path.replace(self.final_path)
        descriptor = os.open(self.final_path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def discard(self) -> None:
        """Remove the copy unless it was moved."""
        self.path.unlink(missing_ok=True)


def prepare_folders(data_dir: Path) -> Path:
    """Create the folders of uploads, and return the one for temporary files.

    /tmp may be in memory and too small for a model.
    """
    for name in ("uploads", "archives", "tmp"):
        (data_dir / name).mkdir(parents=True, exist_ok=True)
    for left in (data_dir / "uploads").glob(f"{_UNFINISHED}*"):
        if time.time() - left.stat().st_mtime > _MAX_UPLOAD_SECS:
            left.unlink(missing_ok=True)
    return data_dir / "tmp"


def stage(file: BinaryIO, filename: str, data_dir: Path) -> Staged:
    """Copy an upload into the data directory, and hash it on the way.

    Args:
        file: Upload, positioned at its start.
        filename: File name of the client; its extension is the format, its stem the name.

    Raises:
        Problem: If the upload is empty, or in an unsupported format.
        OSError: If it cannot be stored; nothing is left behind.
    """
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
    folder = data_dir / "uploads"
    path = folder / f"{_UNFINISHED}{secrets.token_hex(8)}"
    try:
        hashed = hashlib.sha256()
        with path.open("xb") as copy:
            while chunk := file.read(_CHUNK):
                hashed.update(chunk)
                copy.write(chunk)
            copy.flush()
            os.fsync(copy.fileno())
        digest = hashed.hexdigest()
        n_bytes = path.stat().st_size
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    reference, final_path = upload_reference(digest), upload_path(data_dir, digest)
    return Staged(path, final_path, digest, n_bytes, reference, _stem(filename))


def _wrong_model(slug: str, message: str, advice: str = _ADVICE) -> Problem:
    return wrong_field("model", message, slug=slug, advice=advice)


def _stem(filename: str) -> str:
    """Return the name of a network from its file name, which is never part of a path here."""
    stem = filename.replace("\\", "/").rpartition("/")[2]
    stem = "".join(char for char in stem if char.isprintable())[:200]
    return stem[: -len(".onnx")] if stem.lower().endswith(".onnx") else stem
