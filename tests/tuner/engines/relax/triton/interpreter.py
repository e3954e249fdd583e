"""Triton's interpreter, which runs kernels on arrays without a GPU, in a process of its own.

Triton decides when it is imported whether its functions are interpreted.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

import ml_dtypes
import numpy as np

from tuner.engines.relax.triton.programs import COUNTERS, WORKSPACE, Kernel, Program, load

Array = np.ndarray[Any, Any]


class Interpreter:
    """A process that interprets programs."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def __call__(
        self, program: Program, arrays: Sequence[Array], n_blocks: int = 0, seed: int = 0
    ) -> list[Array]:
        """Run a program on the arguments of its workload; return them as they are then.

        Args:
            program: Program.
            arrays: Arguments.
            n_blocks: Blocks that are run, the first and the last among them; 0 for all.
            seed: Seed of the order of the blocks.
        """
        return self._pool.submit(_run, program, list(arrays), n_blocks, seed).result()


@contextmanager
def started() -> Iterator[Interpreter]:
    """Start the process."""
    with ProcessPoolExecutor(1, get_context("spawn"), _prepare) as pool:
        yield Interpreter(pool)


def _prepare() -> None:
    """Have Triton interpret, and mend its products.

    Of bfloat16 it cuts digits and multiplies the bits; float32 it multiplies exactly, where tensor
    cores multiply the first eleven digits alone.
    """
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    convert, multiply = InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot

    def cast_impl(self: Any, source: Any, kind: Any) -> Any:
        if (source.dtype.scalar, kind.scalar) != (tl.float32, tl.bfloat16):
            return convert(self, source, kind)
        rounded = source.data.astype(ml_dtypes.bfloat16).view(np.uint16)
        return TensorHandle(rounded, kind.scalar)

    def cut(array: Array) -> Array:
        return (array.view(np.uint32) & 0xFFFFE000).view(np.float32)

    def create_dot(self: Any, left: Any, right: Any, sums: Any, precision: Any, most: Any) -> Any:
        if left.dtype.scalar == tl.bfloat16:
            left, right = (
                TensorHandle(each.data.view(ml_dtypes.bfloat16).astype(np.float32), tl.float32)
                for each in (left, right)
            )
        elif left.dtype.scalar == tl.float32:
            (a, b), (c, d) = ((cut(x), cut(x - cut(x))) for x in (left.data, right.data))
            small = b @ c + a @ d if precision.name == "TF32x3" else np.zeros_like(sums.data)
            return TensorHandle(sums.data + np.nan_to_num(small) + a @ c, tl.float32)
        return multiply(self, left, right, sums, precision, most)

    InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot = cast_impl, create_dot


def _run(program: Program, arrays: list[Array], n_blocks: int, seed: int) -> list[Array]:
    named = {f"p{number}": array for number, array in enumerate(arrays)}
    if program.workspace:
        # What no block writes must not be read.
        named[WORKSPACE] = np.full(program.workspace, -(2**30), program.dtype)
    with np.errstate(all="ignore"):
        for kernel in program.kernels:
            named[COUNTERS] = np.zeros(kernel.n_counters, np.int32)
            _launch(kernel, named, n_blocks, seed)
            if named[COUNTERS].any():
                raise ValueError(f"{kernel.name} leaves counters that are not zero")
    return arrays


def _launch(kernel: Kernel, arrays: Mapping[str, Array], n_blocks: int, seed: int) -> None:
    """Run the blocks of a kernel, or some of them, one after the other, in a drawn order."""
    import triton.language as tl
    from triton.runtime import interpreter

    function = load(kernel).rewrite()
    arguments = {}
    counters = [(COUNTERS, "int32")] if kernel.n_counters else []
    for name, dtype in (*kernel.pointers, *counters):
        kind = tl.pointer_type(tl.int1 if dtype == "bool" else getattr(tl, dtype))
        address = np.array([arrays[name].ctypes.data], np.uint64)
        arguments[name] = tl.tensor(interpreter.TensorHandle(address, kind), kind)
    order = np.random.default_rng((seed, kernel.n_blocks)).permutation(kernel.n_blocks).tolist()
    if n_blocks:
        order = list(dict.fromkeys([0, kernel.n_blocks - 1, *order]))[:n_blocks]
    patches = interpreter._patch_lang(function)
    try:
        interpreter.interpreter_builder.set_grid_dim(kernel.n_blocks, 1, 1)
        for block in order:
            interpreter.interpreter_builder.set_grid_idx(block, 0, 0)
            function(**arguments)
    finally:
        patches.restore()
