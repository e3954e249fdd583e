"""Host code that launches the kernels of a program, and their binaries, as an object of TVM."""

import struct
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.target import Target
from tvm.tirx import Evaluate, PrimFunc, SeqStmt

from tuner.engines.relax.codegen.cuda import nvrtc
from tuner.engines.relax.ir.blobs import DeviceModule
from tuner.engines.relax.triton.compilation.compiler import Binary, compile_kernel
from tuner.engines.relax.triton.programs import WORKSPACE, Kernel, Program

# Types of arguments as TVM stores them: code, bits, lanes.
_POINTER, _NUMBER = struct.pack("<BBH", 3, 64, 1), struct.pack("<BBH", 0, 64, 1)
_TAGS = (b"blockIdx.x", b"threadIdx.x", b"tirx.use_dyn_shared_memory")
# Launched before the kernel before it has ended; TVM's spelling.
_OVERLAPS = b"tirx.use_programtic_dependent_launch"


def build(
    function: PrimFunc, program: Program, target: Target
) -> tuple[tvm.runtime.Module, list[DeviceModule]]:
    """Compile a program to host code and the binaries of its kernels.

    Args:
        function: Workload, whose arguments and symbol the host code has.
        target: Target for a GPU.

    Raises:
        WorkError: If Triton refuses a kernel.
    """
    arch = str(target.attrs["arch"])
    binaries = [compile_kernel(kernel, arch) for kernel in program.kernels]
    symbol = str(function.attrs["global_symbol"])
    launches = _launches(function, program, binaries)
    return nvrtc.lower(tvm.IRModule({symbol: launches}), target), [
        DeviceModule("cubin", _table(kernel, binary), binary.code)
        for kernel, binary in zip(program.kernels, binaries, strict=True)
    ]


def _launches(function: PrimFunc, program: Program, binaries: Sequence[Binary]) -> PrimFunc:
    """Return the function that launches the kernels one after the other."""
    workspace = tirx.decl_buffer(program.workspace or (1,), program.dtype, WORKSPACE)

    def pointer(name: str) -> Any:
        buffer = workspace if name == WORKSPACE else function.params[int(name[1:])]
        return buffer.data

    statements = []
    for kernel, binary in zip(program.kernels, binaries, strict=True):
        pointers = [pointer(name) for name, _ in kernel.pointers]
        zeros = [0] * (binary.n_parameters - len(pointers))
        sizes = (kernel.n_blocks, binary.n_threads, binary.shared_bytes)
        numbers = [tirx.const(number, "int64") for number in (*zeros, *sizes)]
        statements.append(Evaluate(tirx.call_packed(kernel.name, *pointers, *numbers)))
    body = SeqStmt(statements) if len(statements) > 1 else statements[0]
    buffers = [workspace] if program.workspace else []
    root = SBlock([], [], [], "root", body, alloc_buffers=buffers)
    return PrimFunc(
        list(function.params), SBlockRealize([], True, root), function.ret_type, function.attrs
    )


def _table(kernel: Kernel, binary: Binary) -> bytes:
    """Return the table by which TVM launches a kernel; see :class:`DeviceModule`."""
    n_pointers = len(kernel.pointers)
    types = _POINTER * n_pointers + _NUMBER * (binary.n_parameters - n_pointers)
    # TVM wants the shared memory last.
    tags = [_sized(tag) for tag in ((_OVERLAPS, *_TAGS) if binary.facts.waits else _TAGS)]
    name = _sized(kernel.name.encode())
    return b"".join(
        (
            *(_number(1), name, name, _number(binary.n_parameters), types),
            *(_number(len(tags)), *tags, _number(0)),
        )
    )


def _sized(content: bytes) -> bytes:
    return _number(len(content)) + content


def _number(value: int) -> bytes:
    return struct.pack("<Q", value)
