"""Reading of ONNX files with their external data, with precise errors for bad files."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePath
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx.external_data_helper import uses_external_data

from tuner.errors import ModelError
from tuner.networks import file_kinds
from tuner.networks.base import MAX_ONNX_BYTES

# Element types of which a byte holds several.
_PACKED_BITS = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}


def read(path: Path, *, alone: bool = False) -> onnx.ModelProto:
    """Read a model completely, including weights in external files.

    Args:
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
        raise _damaged(path, data) from error
    if not (model.graph.node or model.graph.output):
        raise _damaged(path, data)
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


def _damaged(path: Path, data: bytes) -> ModelError:
    kind = file_kinds.describe(path) or (
        f"is not an ONNX model, or is cut off after {len(data)} bytes, or has a name that is not "
        "UTF-8: export or download it again"
    )
    return ModelError(f"{str(path)!r} {kind}", code="damaged-file")


def _load_external(model: onnx.ModelProto, path: Path, *, alone: bool) -> None:
    tensors = [tensor for tensor in tensors_within(model) if uses_external_data(tensor)]
    if tensors and alone:
        raise ModelError(
            f"{str(path)!r} keeps weights in other files, and an upload is one file: "
            "save the model with its weights inside (onnx.save without external data)",
            code="external-data",
        )
    parts = [_part_of(tensor, path) for tensor in tensors]
    check_size(path.stat().st_size + sum(part.n_bytes for part in parts), str(path))
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.raw_data = part.read(path)
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")


def _n_bytes(tensor: onnx.TensorProto) -> int:
    """Return the size of a tensor's data, without its external file; -1 for an unknown type."""
    try:
        name = onnx.TensorProto.DataType.Name(tensor.data_type)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, ValueError):
        return -1
    n_bits = _PACKED_BITS.get(name, 8 * int(dtype.itemsize))
    n_elements = prod(int(dim) for dim in tensor.dims)
    return -(-n_elements * n_bits // 8)


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


@dataclass(frozen=True)
class _Part:
    """Bytes of an external file, without links in its path."""

    file: Path
    start: int
    n_bytes: int

    def read(self, model: Path) -> bytes:
        try:
            with self.file.open("rb") as stream:
                stream.seek(self.start)
                return stream.read(self.n_bytes)
        except OSError as error:
            raise ModelError(
                f"cannot read {str(self.file)!r}, the external data of {str(model)!r}: "
                f"{error.strerror}",
                code="external-data",
            ) from error


def _part_of(tensor: onnx.TensorProto, path: Path) -> _Part:
    """Return where the data of a tensor is; raise ModelError if it is missing or elsewhere."""
    entry = {item.key: item.value for item in tensor.external_data}
    if len(entry) < len(tensor.external_data):
        raise ModelError(
            f"{str(path)!r} says more than once where the weights of {tensor.name!r} are: "
            "export it again",
            code="external-data",
        )
    location = entry.get("location", "")
    data_file = path.parent / location
    # The name must stay inside of the directory, and so must the file that it is a link to.
    is_inside = not PurePath(location).is_absolute() and ".." not in PurePath(location).parts
    resolved = data_file.resolve()
    if not is_inside or not any(resolved.is_relative_to(root) for root in _roots(path)):
        raise ModelError(
            f"{str(path)!r} keeps weights in {location!r}, outside its own directory: "
            "save the model again with its weights in the same directory",
            code="external-data",
        )
    if not resolved.is_file():
        raise ModelError(
            f"{str(path)!r} keeps weights in {location!r}, which is missing: "
            "put that file in the same directory",
            code="external-data",
        )
    size = resolved.stat().st_size
    try:
        start = int(entry.get("offset", 0))
        # The length is optional, and some exporters write 0.
        n_bytes = int(entry.get("length", 0)) or _n_bytes(tensor)
    except ValueError:
        start = n_bytes = -1
    if min(start, n_bytes) < 0:
        raise ModelError(
            f"{str(path)!r} gives weight {tensor.name!r} no valid offset and length in "
            f"{location!r}: export it again",
            code="external-data",
        )
    if start + n_bytes > size:
        raise ModelError(
            f"{str(data_file)!r} is cut off: {path.name!r} needs {start + n_bytes} bytes of it, "
            f"it has {size}; export or download it again",
            code="external-data",
        )
    return _Part(resolved, start, n_bytes)


def _roots(path: Path) -> Iterator[Path]:
    """Yield the folders that may hold the data of a model.

    The cache of huggingface_hub keeps files in ``models--NAME/blobs``, and in its snapshots links
    to them. ONNX Runtime also takes data from the folder of the file that a model is a link to.
    """
    yield path.parent.resolve()
    yield path.resolve().parent
    for folder in path.absolute().parents:
        if folder.name.startswith("models--") and (folder / "snapshots") in path.absolute().parents:
            yield (folder / "blobs").resolve()
