"""The functions of deploy/c/tuner.h by ctypes."""

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Tensor(ctypes.Structure):
    """The structure tuner_tensor."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("rank", ctypes.c_size_t),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
        ("n_bytes", ctypes.c_size_t),
    )


def described(name: str, array: Array) -> Tensor:
    """Describe an array, which must outlive the structure."""
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    dtype = str(array.dtype).encode()
    return Tensor(name.encode(), dtype, array.ndim, shape, array.ctypes.data, array.nbytes)


class Interface:
    """The functions of libtuner.so, whose failures are RuntimeErrors."""

    def __init__(self, file: Path) -> None:
        functions = ctypes.CDLL(str(file))
        size, tensor = ctypes.c_size_t, ctypes.POINTER(Tensor)
        for name, result, arguments in (
            ("open", ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)),
            ("close", None, (ctypes.c_void_p,)),
            ("n_programs", size, (ctypes.c_void_p,)),
            ("n_inputs", size, (ctypes.c_void_p,)),
            ("n_outputs", size, (ctypes.c_void_p,)),
            ("input", tensor, (ctypes.c_void_p, size, size)),
            ("output", tensor, (ctypes.c_void_p, size)),
            ("run", ctypes.c_int, (ctypes.c_void_p, tensor, size)),
            ("error", ctypes.c_char_p, ()),
        ):
            function = getattr(functions, f"tuner_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def opened(self, folder: Path, n_threads: int = 1) -> Any:
        """Open a library."""
        library = self.open(str(folder).encode(), n_threads)
        if not library:
            raise RuntimeError(self.error().decode())
        return library

    def run_tensors(self, library: Any, tensors: list[Tensor]) -> dict[str, Array]:
        """Run a library; copy its outputs."""
        if self.run(library, (Tensor * len(tensors))(*tensors), len(tensors)):
            raise RuntimeError(self.error().decode())
        outputs = {}
        for number in range(self.n_outputs(library)):
            output = self.output(library, number).contents
            content = ctypes.string_at(output.data, output.n_bytes)
            array = np.frombuffer(content, output.dtype.decode())
            outputs[output.name.decode()] = array.reshape(output.shape[: output.rank])
        return outputs

    def __call__(self, library: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run a library on arrays in the order of its inputs."""
        return self.run_tensors(library, [described(*each) for each in inputs.items()])
