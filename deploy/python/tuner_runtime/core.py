"""Libraries run by libtuner.so, with the wrappers that ``tuner.load`` puts around them."""

import ctypes
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tuner.errors import RequestError, WorkError
from tuner.library import manifest
from tuner.library.constant_inputs import with_constants
from tuner.library.processors import check_library
from tuner.library.tails import with_tail
from tuner.library.threads import VARIABLE, set_threads
from tuner.library.wrapper import NamedLibrary

if TYPE_CHECKING:
    from tuner.library.loading import Library

Array = np.ndarray[Any, Any]
_FILE = Path(__file__).with_name("lib") / "libtuner.so"
_BAD_INPUT = 1


def load(folder: str | Path, threads: int | None = None) -> "Library":
    """Load a library; see ``tuner.load``.

    Raises:
        TargetError: If this machine cannot run its code.
        RequestError: If there is no library, it is damaged or cannot run here, or the number of
            threads is not positive.
    """
    path = Path(folder)
    described = manifest.read(path)
    check_library(described, path)
    set_threads(described, threads)
    # Limits and buckets are libtuner's.
    return with_constants(with_tail(CompiledLibrary(path, described), path, described), described)


class Tensor(ctypes.Structure):
    """The structure tuner_tensor of tuner.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("rank", ctypes.c_size_t),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
        ("n_bytes", ctypes.c_size_t),
    )


def described_array(name: str, array: Array) -> Tensor:
    """Describe an array, which must outlive the structure."""
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    dtype = str(array.dtype).encode()
    return Tensor(name.encode(), dtype, array.ndim, shape, array.ctypes.data, array.nbytes)


@lru_cache
def functions_of(file: Path) -> Any:
    """Load libtuner.so and declare its functions."""
    functions = ctypes.CDLL(str(file))
    size, tensor, library = ctypes.c_size_t, ctypes.POINTER(Tensor), ctypes.c_void_p
    for name, result, arguments in (
        ("open", library, (ctypes.c_char_p, ctypes.c_int)),
        ("open_without_tail", library, (ctypes.c_char_p, ctypes.c_int)),
        ("close", None, (library,)),
        ("n_programs", size, (library,)),
        ("n_inputs", size, (library,)),
        ("n_outputs", size, (library,)),
        ("input", tensor, (library, size, size)),
        ("output", tensor, (library, size)),
        ("describe_outputs", ctypes.c_int, (library, tensor, size, tensor, size)),
        ("run", ctypes.c_int, (library, tensor, size)),
        ("run_into", ctypes.c_int, (library, tensor, size, tensor, size)),
        ("run_on_gpu", ctypes.c_int, (library, tensor, size, tensor, size, ctypes.c_void_p)),
        ("error", ctypes.c_char_p, ()),
    ):
        function = getattr(functions, f"tuner_{name}")
        function.restype, function.argtypes = result, arguments
    return functions


class CompiledLibrary(NamedLibrary):
    """The programs of a library, without its tail; see :class:`tuner.library.loading.Library`."""

    def __init__(self, folder: Path, described: manifest.Manifest) -> None:
        self.inputs, self.outputs = described.inputs, described.returned
        self.programs = described.programs
        self._functions = functions_of(_FILE)
        self._lock = Lock()
        n_threads = int(os.environ[VARIABLE])
        self._library = self._functions.tuner_open_without_tail(os.fsencode(folder), n_threads)
        if not self._library:
            raise RequestError(self._error())

    def __del__(self) -> None:
        if getattr(self, "_library", None):
            self._functions.tuner_close(self._library)

    def run_arrays(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Run the network; calls of several threads run one after the other.

        Raises:
            ValueError: If an input cannot be used; the message names it.
            WorkError: If the run failed, or an output has a dtype that needs ml_dtypes.
        """
        for name in arrays.keys() ^ self.inputs.keys():
            problem = "is missing" if name in self.inputs else "is unknown"
            raise ValueError(f"input {name!r} {problem}; inputs are {', '.join(self.inputs)}")
        given = {name: np.asarray(arrays[name], order="C") for name in self.inputs}
        tensors = (Tensor * len(given))(*(described_array(*each) for each in given.items()))
        with self._lock:  # the next run overwrites the outputs
            if status := self._functions.tuner_run(self._library, tensors, len(tensors)):
                message = self._error()
                raise ValueError(message) if status == _BAD_INPUT else WorkError(message)
            return {name: self._output(number) for number, name in enumerate(self.outputs)}

    def run_on_device(self, *_: Any) -> NoReturn:
        """Refuse arrays on a GPU.

        Raises:
            RequestError: Always.
        """
        raise RequestError("call the library with arrays of NumPy: tuner_runtime takes no others")

    def _output(self, number: int) -> Array:
        tensor = self._functions.tuner_output(self._library, number).contents
        content = bytearray(ctypes.string_at(tensor.data, tensor.n_bytes))
        array: Array = np.frombuffer(content, _dtype(tensor.dtype.decode()))
        return array.reshape(tensor.shape[: tensor.rank])

    def _error(self) -> str:
        message: bytes = self._functions.tuner_error()
        return message.decode(errors="replace")


def _dtype(name: str) -> Any:
    try:
        return np.dtype(name)
    except TypeError:
        try:
            import ml_dtypes
        except ImportError as error:
            raise WorkError(f"outputs of {name} need the package ml_dtypes: {error}") from error
        return np.dtype(getattr(ml_dtypes, name))
