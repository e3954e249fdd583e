"""Memory that kernels take while they run, kept by the library whose call takes it.

TVM takes it from a pool of the thread, which gives it to the next kernel of any library and frees
it when the thread ends. A graph that was captured uses it in every replay.
"""

import ctypes
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import tvm
from tvm_ffi.libinfo import find_libtvm_ffi

from tuner.engines.cuda import branches

_CUDA = 2
_ALLOCATE, _FREE = "__TVMBackendAllocWorkspace", "__TVMBackendFreeWorkspace"
_Allocate = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_int
)
_Free = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
_current = threading.local()
# Functions of TVM that the ones here replace, by symbol.
_replaced: dict[str, Any] = {}


class Scratch:
    """Blocks of memory of one library; they stay until it is dropped."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._blocks: dict[int, Any] = {}
        self._free: list[int] = []

    @property
    def is_used(self) -> bool:
        """True if a kernel has taken memory."""
        return bool(self._blocks)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Give the kernels that this thread calls memory of this library."""
        before = getattr(_current, "scratch", None)
        _current.scratch = self
        try:
            yield
        finally:
            _current.scratch = before

    def take(self, n_bytes: int) -> int:
        """Return the address of the smallest free block of a size, or of a new one.

        A block that a kernel beside this one may use is not free.
        """
        order = branches.current()
        if order is None:
            return self._take(n_bytes, self._free)
        name = order.next_block()
        known = [order.blocks[name]] if name in order.blocks else filter(order.may_use, self._free)
        order.blocks[name] = self._take(n_bytes, known)
        return order.blocks[name]

    def _take(self, n_bytes: int, free: Iterable[int]) -> int:
        fitting = [address for address in free if self._blocks[address].shape[0] >= n_bytes]
        if fitting:
            address = min(fitting, key=lambda a: int(self._blocks[a].shape[0]))
            self._free.remove(address)
            return address
        block = tvm.runtime.empty((max(n_bytes, 1),), "uint8", self._device)
        self._blocks[block.data_ptr()] = block
        return int(block.data_ptr())

    def give_back(self, address: int) -> None:
        """Make a block free again."""
        self._free.insert(0, address)


def install(library: str) -> None:
    """Make the kernels of a loaded library take memory from here, if they take any."""
    loaded = ctypes.CDLL(library)
    for symbol, function in _FUNCTIONS.items():
        try:
            pointer = ctypes.c_void_p.in_dll(loaded, symbol)
        except ValueError:
            continue  # no kernel of the library takes memory
        own = ctypes.cast(function, ctypes.c_void_p).value
        if pointer.value != own:
            _replaced[symbol] = type(function)(pointer.value or 0)
            pointer.value = own


def _allocate(device: int, number: int, n_bytes: int, code: int, bits: int) -> int | None:
    scratch = getattr(_current, "scratch", None)
    if device != _CUDA or scratch is None:
        address: int | None = _replaced[_ALLOCATE](device, number, n_bytes, code, bits)
        return address
    try:
        return int(scratch.take(n_bytes))
    except Exception as error:
        # It cannot pass through the kernel, which without memory raises what is set here.
        _set_error(b"MemoryError", f"scratch memory of a kernel: {error}".encode())
        return None


def _give_back(device: int, number: int, address: int) -> int:
    scratch = getattr(_current, "scratch", None)
    if device != _CUDA or scratch is None:
        return int(_replaced[_FREE](device, number, address))
    scratch.give_back(address)
    return 0


_set_error = ctypes.CDLL(find_libtvm_ffi()).TVMFFIErrorSetRaisedFromCStr
_set_error.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
_set_error.restype = None
# As C functions, which the kernels of any library may call until the process ends.
_FUNCTIONS = {_ALLOCATE: _Allocate(_allocate), _FREE: _Free(_give_back)}
