"""Reading of ONNX files with their external data, with precise errors for bad files."""

from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from tuner.errors import ModelError, summary
from tuner.networks.base import MAX_ONNX_BYTES


def read(path: Path, *, alone: bool = False) -> onnx.ModelProto:
    """Read a model completely, including weights in external files.

    Args:
        path: The file.
        alone: True for an untrusted upload, which must not read other files.

    Raises:
        ModelError: If the file is not an ONNX model, is damaged, lacks its external data, or
            passes the 2 GB protobuf limit.
    """
    check_size(path.stat().st_size, str(path))
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(
            f"cannot read {str(path)!r}: {error.strerror}", code="unreadable-file"
        ) from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(f"{str(path)!r} {_describe_bad(data)}", code="damaged-file") from error
    if not model.graph.node or not model.opset_import:
        raise ModelError(f"{str(path)!r} {_describe_bad(data)}", code="damaged-file")
    _load_external(model, path, alone=alone)
    return model


def check_size(n_bytes: int, what: str) -> None:
    """Raise ModelError if a model of this size cannot be one protobuf message."""
    if n_bytes > MAX_ONNX_BYTES:
        raise ModelError(
            f"{what} needs {n_bytes / 1e9:.1f} GB, and ONNX models above 2 GB (the protobuf limit) "
            "are not supported: export it in float16 or in parts",
            code="too-large",
        )


def _describe_bad(data: bytes) -> str:
    head = data[:512]
    if head.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the model: run git lfs pull"
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head):
        return "is a text file, not an ONNX model: pass the exported .onnx file"
    return (
        f"is not an ONNX model, or is cut off after {len(data)} bytes: export or download it again"
    )


def _load_external(model: onnx.ModelProto, path: Path, *, alone: bool) -> None:
    tensors = [tensor for tensor in tensors_within(model) if uses_external_data(tensor)]
    if tensors and alone:
        raise ModelError(
            f"{str(path)!r} keeps weights in other files, and an upload is one file: "
            "save the model with its weights inside (onnx.save without external data)",
            code="external-data",
        )
    try:
        n_bytes = sum(_check_external(tensor, path) for tensor in tensors)
        check_size(path.stat().st_size + n_bytes, str(path))
        for tensor in tensors:
            load_external_data_for_tensor(tensor, str(path.parent))
    except ModelError:
        raise
    # Depending on its version, onnx raises its own, protobuf's or the system's errors here.
    except Exception as error:
        raise ModelError(
            f"cannot read the external data of {str(path)!r}: {summary(error, max_chars=200)}",
            code="external-data",
        ) from error


def tensors_within(message: Any) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a message, including those in attributes, subgraphs and functions."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for _, value in message.ListFields():
        if isinstance(value, str | bytes | int | float):
            continue
        for item in (value,) if hasattr(value, "ListFields") else value:
            if hasattr(item, "ListFields"):
                yield from tensors_within(item)


def _check_external(tensor: onnx.TensorProto, path: Path) -> int:
    """Return the number of bytes of a tensor in its file; raise ModelError if some are missing."""
    entry = {item.key: item.value for item in tensor.external_data}
    if len(entry) < len(tensor.external_data):
        raise ModelError(
            f"{str(path)!r} says more than once where the weights of {tensor.name!r} are: "
            "export it again",
            code="external-data",
        )
    location = entry.get("location", "")
    if PurePath(location).is_absolute() or ".." in PurePath(location).parts:
        raise ModelError(
            f"{str(path)!r} keeps weights in {location!r}, outside its own directory: "
            "save the model again with its weights in the same directory",
            code="external-data",
        )
    data_file = path.parent / location
    if not data_file.is_file():
        raise ModelError(
            f"{str(path)!r} keeps weights in {location!r}, which is missing: "
            "put that file in the same directory",
            code="external-data",
        )
    size = data_file.stat().st_size
    start = int(entry.get("offset", 0))
    length = int(entry.get("length", size - start))
    if start + length > size:
        raise ModelError(
            f"{str(data_file)!r} is cut off: {path.name!r} needs {start + length} bytes of it, "
            f"it has {size}; export or download it again",
            code="external-data",
        )
    return length
