"""Kinds of files that are mistaken for models, by their first bytes or the names in an archive."""

import re
import zipfile
from pathlib import Path

_HEAD_BYTES = 512
# First bytes, the place where they are, and the kind of file with the remedy.
_HEADS = (
    (b"version https://git-lfs", 0, "is a Git LFS pointer, not the model: run git lfs pull"),
    (b"\x1f\x8b", 0, "is compressed by gzip: unpack it first"),
    (b"BZh", 0, "is compressed by bzip2: unpack it first"),
    (b"\xfd7zXZ", 0, "is compressed by xz: unpack it first"),
    (b"\x28\xb5\x2f\xfd", 0, "is compressed by zstd: unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", 0, "is a 7z archive: unpack it first"),
    (b"ustar", 257, "is a tar archive: unpack it first"),
    (b"ORTM", 4, "is in ONNX Runtime's own format: pass the .onnx file that it was made from"),
    (b"TFL3", 4, "is a TFLite model: convert it to ONNX"),
    (b"\x89HDF", 0, "is an HDF5 file, as Keras writes it: export the model to ONNX"),
    (b"GGUF", 0, "is a GGUF file of weights, which has no graph: export the model to ONNX"),
    (b'{"', 8, "is a safetensors file of weights, which has no graph: export the model to ONNX"),
    (b"\x93NUMPY", 0, "is an array of numpy, not a model"),
    (b"\x80\x02", 0, "is a pickle, as torch.save writes it: export the module to ONNX"),
    (b"\x80\x04", 0, "is a pickle: export the module to ONNX"),
    (
        b"\xef\xbb\xbf",
        0,
        "begins with a byte order mark, so that a program took it for text: download it again",
    ),
)
_PAGES = (b"<!doctype html", b"<html")
# Names in archives of torch.export, the second of torch before 2.8.
_PROGRAM = re.compile(r"/models/[^/]+\.json$|/serialized_exported_program\.json$")
# What an archive has, and the kind of file with the remedy.
_MEMBERS = (
    (
        "/data/aotinductor/",
        "is a package of AOTInductor, compiled code without the program: write the program with "
        "torch.export.save",
    ),
    ("/constants.pkl", "is a TorchScript archive: export the module with torch.export or to ONNX"),
    (
        "/data.pkl",
        "is a checkpoint of torch.save, which has no graph: export the module with torch.export "
        "or to ONNX",
    ),
    (".npy", "is an archive of numpy arrays, not a model"),
    ("model.onnx", "is an archive: unpack it, and pass the .onnx file in it"),
)
_ARCHIVE = "is a zip archive without an exported program: unpack it, and pass the model in it"


def describe(path: Path) -> str:
    """Return what a file is that is neither an ONNX model nor an exported program, and the remedy.

    Empty if it is one of them, or unknown.

    Raises:
        OSError: If the file cannot be read.
    """
    if not zipfile.is_zipfile(path):
        with path.open("rb") as stream:
            return _describe(stream.read(_HEAD_BYTES))
    try:
        with zipfile.ZipFile(path) as archive:
            names = [f"/{name}" for name in archive.namelist()]
    except zipfile.BadZipFile:
        return "is a damaged archive: export or download it again"
    if any(map(_PROGRAM.search, names)):
        return ""
    return next((text for part, text in _MEMBERS if any(part in name for name in names)), _ARCHIVE)


def _describe(head: bytes) -> str:
    for magic, place, text in _HEADS:
        if head[place:].startswith(magic):
            return text
    if head.lstrip().lower().startswith(_PAGES):
        return "is a web page, not the model: download the file itself"
    if head and all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head):
        return "is a text file, not a model: pass the exported file"
    return ""
