"""Observation of the kernel calls of a library: the tensors that each reads and writes.

Calls pass their arguments as TVM's FFI defines them, an array of tagged values. A tensor is a
``DLTensor``, or an object whose header one follows.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tuner.engines.base import ObservedCall
from tuner.engines.runtime.call_timers import OBSERVE
from tuner.engines.runtime.tensor_digests import Array, digest_of
from tuner.errors import WorkError, summary

# Tags of the FFI, and the size of the header of its objects.
_DLTENSOR, _TENSOR, _HEADER_BYTES = 7, 70, 24
# Codes of the data types of DLPack.
_BFLOAT, _BOOL = 4, 6
_KINDS = {0: "i", 1: "u", 2: "f"}


class _Any(ctypes.Structure):
    """A tagged value."""

    _fields_ = (("tag", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.c_uint64))


class _Tensor(ctypes.Structure):
    """A ``DLTensor``."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("n_dims", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )

    @property
    def address(self) -> int:
        """Address of the first element."""
        return int(self.data + self.offset)

    def read(self) -> Array:
        """Return the elements, which the library still owns."""
        n_elements = int(np.prod([self.shape[axis] for axis in range(self.n_dims)], dtype=np.int64))
        n_bytes = n_elements * self.bits // 8
        raw = (ctypes.c_uint8 * n_bytes).from_address(self.address)
        if self.code == _BFLOAT:
            halves = np.frombuffer(raw, np.uint16)
            return (halves.astype(np.uint32) << 16).view(np.float32)
        dtype = "bool" if self.code == _BOOL else f"{_KINDS[self.code]}{self.bits // 8}"
        return np.frombuffer(raw, dtype)


@dataclass
class CallObserver:
    """Observer of the calls of a run.

    Attributes:
        n_outputs: Number of outputs of each call, by its number.
        calls: Calls so far.
    """

    n_outputs: Sequence[int]
    calls: list[ObservedCall] = field(default_factory=list)
    _writers: dict[int, int] = field(default_factory=dict)

    def __call__(self, call: int, arguments: int, n_arguments: int) -> None:
        """Observe a call that has ended."""
        tensors = list(_tensors(arguments, n_arguments))
        n_inputs = len(tensors) - self.n_outputs[call]
        inputs, outputs = tensors[:n_inputs], tensors[n_inputs:]
        sources = {self._writers[each.address] for each in inputs if each.address in self._writers}
        for each in outputs:
            self._writers[each.address] = len(self.calls)
        digests = tuple(digest_of(each.read()) for each in outputs)
        self.calls.append(ObservedCall(call, tuple(sorted(sources)), digests))


def _tensors(arguments: int, n_arguments: int) -> Iterator[_Tensor]:
    for value in (_Any * n_arguments).from_address(arguments):
        if value.tag == _DLTENSOR:
            yield _Tensor.from_address(value.value)
        elif value.tag == _TENSOR:
            yield _Tensor.from_address(value.value + _HEADER_BYTES)


def observe(
    library: Path, n_outputs: Sequence[int], run: Callable[[], object]
) -> tuple[ObservedCall, ...]:
    """Run a library that is loaded in this process, on a CPU, and observe its calls.

    Args:
        library: Path of the shared library.
        n_outputs: Number of outputs of each call, by its number.
        run: Runs the library once.

    Raises:
        WorkError: If the library has no timers.
    """
    try:
        install = getattr(ctypes.CDLL(str(library)), OBSERVE)
    except (OSError, AttributeError) as error:
        raise WorkError(
            f"the kernels of {library} cannot be observed: {summary(error)}; build it again"
        ) from error
    observer = CallObserver(n_outputs)
    errors: list[Exception] = []

    def on_call(call: int, arguments: int, n_arguments: int) -> None:
        try:
            if not errors:
                observer(call, arguments, n_arguments)
        except Exception as error:  # it cannot pass through the library
            errors.append(error)

    prototype: Any = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32)
    callback = prototype(on_call)
    install.restype = None
    install(callback)
    try:
        run()
    finally:
        install(None)
    if errors:
        raise WorkError(f"the kernels of {library} cannot be observed: {summary(errors[0])}")
    return tuple(observer.calls)
