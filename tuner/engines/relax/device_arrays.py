"""Arrays of other libraries on a GPU, read and given by DLPack without a copy."""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import tvm_ffi

from tuner.engines.relax.gpu_programs import GpuQueue

_CUDA, _MANAGED = 2, 13
# Vector loads of a kernel need the alignment of the widest vector, bytes.
_ALIGNMENT = 64
# The legacy stream, as DLPack names it.
_LEGACY = 1


class DeviceArray:
    """An output on a GPU, which torch, CuPy and JAX read by ``from_dlpack``.

    Its memory is the caller's until it and all arrays that were made from it are dropped.

    Attributes:
        shape: Its shape.
        dtype: Name of its dtype.
    """

    def __init__(self, tensor: Any, queue: GpuQueue) -> None:
        self._tensor = tensor
        self._queue = queue
        self.shape = tuple(tensor.shape)
        self.dtype = str(tensor.dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device, as DLPack names it."""
        device: tuple[int, int] = self._tensor.__dlpack_device__()
        return device

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """Export the array; the stream of the consumer waits for the run, -1 for no wait."""
        if stream != -1:
            self._queue.wait_on(_LEGACY if stream is None else stream)
        return self._tensor.__dlpack__(**options)


def stream_of(stream: Any, values: Iterable[Any]) -> int:
    """Return the handle of a stream.

    Args:
        stream: A handle, a stream of torch or CuPy, or another object with ``__cuda_stream__``;
            None for the current stream of the library that the first value is of.
        values: Arrays of a call.

    Raises:
        ValueError: If it is not a stream.
    """
    if stream is None:
        stream = _current_stream(next(iter(values), None))
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "cuda_stream"):
        return int(stream.cuda_stream)
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    if hasattr(stream, "ptr"):
        return int(stream.ptr)
    raise ValueError(
        f"stream must be a handle or a stream of torch or CuPy, got {type(stream).__name__}"
    )


def _current_stream(value: Any) -> Any:
    """Return the current stream of torch or CuPy; the legacy stream for other arrays."""
    package = type(value).__module__.partition(".")[0]
    if package == "torch" and value.is_cuda:
        return sys.modules["torch"].cuda.current_stream(value.device)
    return sys.modules["cupy"].cuda.get_current_stream() if package == "cupy" else 0


def read_tensors(kind: str, values: Mapping[str, Any], device: Any, stream: int) -> dict[str, Any]:
    """Return tensors that share the memory of arrays; the stream waits for their producers.

    Args:
        kind: Word for the arrays in messages, input or output.
        values: Arrays by name.
        device: Device of the library.
        stream: Handle of the stream.

    Raises:
        ValueError: If one is not on the device, not contiguous or not aligned; the message names
            it.
    """
    return {
        name: _tensor(f"{kind} {name!r}", value, device, stream) for name, value in values.items()
    }


def _tensor(named: str, value: Any, device: Any, stream: int) -> Any:
    if not hasattr(value, "__dlpack__"):
        raise ValueError(f"{named} must be an array on the GPU, got {type(value).__name__}")
    kind, number = value.__dlpack_device__()
    if kind not in (_CUDA, _MANAGED) or number != device.index:
        where = f"cuda:{number}" if kind == _CUDA else "not on a GPU"
        raise ValueError(
            f"{named} is {where}, and the library runs on cuda:{device.index}; the library itself "
            "takes arrays of NumPy"
        )
    if isinstance(value, tvm_ffi.Tensor):
        tensor = value
    else:
        tensor = tvm_ffi.from_dlpack(value.__dlpack__(stream=stream or _LEGACY))
    if not tensor.is_contiguous() or tensor.data_ptr() % _ALIGNMENT:
        raise ValueError(
            f"{named} must be contiguous and start at a multiple of {_ALIGNMENT} bytes: copy it"
        )
    return tensor
