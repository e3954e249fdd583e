"""Calls of a library for a GPU, for a process that sees the stub driver."""

import ctypes
import os
import sys
from pathlib import Path

import numpy as np

from deploy.python.tuner_runtime.core import Tensor, described_array
from tests.deploy.c_library import Interface

#: Inputs, and shapes of the outputs.
INPUTS = {"x": np.ones((16, 64), np.float32)}
SHAPES = {"y": (16, 32), "same": (64, 16)}


def _run(functions: Interface, library: Path) -> None:
    opened = functions.opened(library)
    for _ in range(3):
        outputs = functions(opened, INPUTS)
    assert {name: array.shape for name, array in outputs.items()} == SHAPES
    np.testing.assert_array_equal(outputs["same"], INPUTS["x"].reshape(64, 16))
    functions.close(opened)


def _on_gpu(functions: Interface, library: Path) -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    opened, stream, memories = functions.opened(library), ctypes.c_void_p(), []
    cuda.cuStreamCreate(ctypes.byref(stream), 1)
    for _name in ("x", *SHAPES):
        memory = ctypes.c_void_p()
        cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4096))
        memories.append(memory)
    x, *others = (
        described_array(name, np.zeros(shape, np.float32))
        for name, shape in {"x": (16, 64), **SHAPES}.items()
    )
    inputs, outputs = (Tensor * 1)(x), (Tensor * 2)(*others)
    for tensor, memory in zip((inputs[0], *outputs), memories, strict=True):
        tensor.data = memory.value
    with Path(os.environ["TUNER_TEST_CUDA_LOG"]).open("a") as log:
        print("here", 0, *(hex(memory.value or 0) for memory in memories), file=log)
        print("in", 0, hex(stream.value or 0), file=log)
    for _ in range(2):
        assert not functions.run_on_gpu(opened, inputs, 1, outputs, 2, stream), functions.error()
    inputs[0].data += 4
    assert functions.run_on_gpu(opened, inputs, 1, outputs, 2, stream)
    assert b"input 'x' must be aligned to 64 bytes" in functions.error()
    functions.close(opened)
    for memory in memories:
        cuda.cuMemFree_v2(memory)


def _in_python(_: Interface, library: Path) -> None:
    import tuner

    tuner.load(library)(INPUTS)


if __name__ == "__main__":
    parts = {"run": _run, "on_gpu": _on_gpu, "python": _in_python}
    parts[sys.argv[1]](Interface(Path(sys.argv[2]) / "libtuner.so"), Path(sys.argv[3]))
