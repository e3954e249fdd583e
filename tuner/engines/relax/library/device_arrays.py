"""Arrays of other libraries on a GPU, read and given by DLPack without a copy."""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import tvm_ffi

from tuner.engines.relax.library.gpu_programs import GpuQueue
from tuner.library.manifest import TensorSpec

_CUDA, _MANAGED = 2, 13
# Vector loads of a kernel need the alignment of the widest vector, bytes.
_ALIGNMENT = 64
# The legacy stream, as DLPack names it.
_LEGACY = 1
#: Address of an array, its shape and dtype, and what keeps its memory: a tensor or the array.
Place = tuple[int, TensorSpec, Any]


class DeviceArray:
    """An output on a GPU, which torch, CuPy and JAX read by ``from_dlpack``.

    Its memory is the caller's until it and all arrays that were made from it are dropped.

    Attributes:
        dtype: Name of its dtype.
    """

    def __init__(self, tensor: Any, spec: TensorSpec, queue: GpuQueue, lease: object) -> None:
        self._tensor = tensor
        self._queue = queue
        self._lease = lease
        self.shape, self.dtype = spec

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
        return _torch_stream(sys.modules["torch"], value.get_device())
    return sys.modules["cupy"].cuda.get_current_stream() if package == "cupy" else 0


def _torch_stream(torch: Any, number: int) -> int:
    """Return the handle of torch's current stream on a device."""
    try:
        handle = torch._C._cuda_getCurrentRawStream(number)
    except AttributeError:  # it is not documented; an object of the stream takes microseconds
        handle = torch.cuda.current_stream(number).cuda_stream
    return int(handle)


class ArrayReader:
    """Reading of the arrays of a call, whose stream waits for their producers.

    Tensors of torch are read without an export of each: all their work is in torch's current
    stream, so that the stream of the call waits once for it, if it is another one.

    Args:
        number: Number of the GPU of the library.
        stream: Handle of the stream of the call.
    """

    def __init__(self, number: int, stream: int) -> None:
        self._number = number
        self._stream = stream
        self._torch: Any = sys.modules.get("torch")
        # Other classes of torch may have no memory of their own.
        self._torch_types = (self._torch.Tensor, self._torch.nn.Parameter) if self._torch else ()
        self._is_after_torch = False

    def read(self, kind: str, values: Mapping[str, Any]) -> dict[str, Place]:
        """Return the places of arrays.

        Args:
            kind: Word for the arrays in messages, input or output.
            values: Arrays by name.

        Raises:
            ValueError: If one is not on the device, not contiguous or not aligned; the message
                names it.
        """
        places = {}
        for name, value in values.items():
            place = self._read_torch(value) if type(value) in self._torch_types else None
            places[name] = place or self._read(f"{kind} {name!r}", value)
        return places

    def tensor(self, value: Any) -> Any:
        """Return a tensor that shares the memory of an array."""
        if isinstance(value, tvm_ffi.Tensor):
            return value
        return tvm_ffi.from_dlpack(value.__dlpack__(stream=self._stream or _LEGACY))

    def _read(self, named: str, value: Any) -> Place:
        if not hasattr(value, "__dlpack__"):
            raise ValueError(f"{named} must be an array on the GPU, got {type(value).__name__}")
        device, number = value.__dlpack_device__()
        if device not in (_CUDA, _MANAGED) or number != self._number:
            where = f"cuda:{number}" if device == _CUDA else "not on a GPU"
            raise ValueError(
                f"{named} is {where}, and the library runs on cuda:{self._number}; the library "
                "itself takes arrays of NumPy"
            )
        tensor = self.tensor(value)
        address = tensor.data_ptr()
        if not tensor.is_contiguous() or address % _ALIGNMENT:
            raise ValueError(
                f"{named} must be contiguous and start at a multiple of {_ALIGNMENT} bytes: copy it"
            )
        return address, (tensor.shape, str(tensor.dtype)), tensor

    def _read_torch(self, value: Any) -> Place | None:
        """Return the place of a tensor of torch; None if it must be exported, or refused."""
        if not value.is_cuda or value.get_device() != self._number or value.requires_grad:
            return None
        if not self._is_after_torch:
            # An export makes the stream wait, and refuses a device that is not the current one.
            self._is_after_torch = True
            current = _torch_stream(self._torch, self._number)
            if current != self._stream or self._torch.cuda.current_device() != self._number:
                return None
        address = value.data_ptr()
        if address % _ALIGNMENT or not value.is_contiguous():
            return None
        dtype = value.dtype
        name = _names.get(dtype) or _names.setdefault(dtype, str(dtype).removeprefix("torch."))
        return address, (value.shape, name), value


# Names of torch's dtypes.
_names: dict[Any, str] = {}
