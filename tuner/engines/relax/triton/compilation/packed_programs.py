"""Programs of Triton's kernels in packs, compiled or as sources; nothing here needs TVM."""

import json
import math
from dataclasses import asdict

import numpy as np

from tuner.engines.packed import WORKSPACE, PackedKernel
from tuner.engines.relax.triton import programs
from tuner.engines.relax.triton.compilation.compiler import compile_kernel
from tuner.engines.relax.triton.programs import Kernel, Program


def compile_program(program: Program, arch: str) -> tuple[list[PackedKernel], int]:
    """Compile the kernels of a program; return them and the size of the memory that they share.

    Raises:
        WorkError: If Triton refuses a kernel.
    """
    shape, item_bytes = program.workspace, np.dtype(program.dtype).itemsize
    kernels = [_compile(kernel, arch) for kernel in program.kernels]
    return kernels, math.prod(shape) * item_bytes if shape else 0


def _compile(kernel: Kernel, arch: str) -> PackedKernel:
    binary = compile_kernel(kernel, arch)
    return PackedKernel(
        name=binary.name,
        code=binary.code,
        grid=(kernel.n_blocks, 1, 1),
        block=(binary.n_threads, 1, 1),
        shared_bytes=binary.shared_bytes,
        pointers=tuple(
            WORKSPACE if name == programs.WORKSPACE else int(name[1:])
            for name, _ in kernel.pointers
        ),
        n_parameters=binary.n_parameters,
        overlaps=binary.facts.waits,
    )


def dump(program: Program) -> str:
    """Return a program as JSON."""
    return json.dumps(asdict(program))


def load(text: str) -> Program:
    """Return the program of a JSON."""
    fields = json.loads(text)
    kernels = []
    for kernel in fields.pop("kernels"):
        pointers = tuple((name, dtype) for name, dtype in kernel.pop("pointers"))
        kernels.append(Kernel(pointers=pointers, **kernel))
    return Program(tuple(kernels), tuple(fields.pop("workspace")), **fields)
