"""Compilation of candidates for packs: kernels, and how they are launched without host code."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import tvm
from tvm.s_tir import Schedule
from tvm.target import Target
from tvm.tirx import AllocBuffer, DeclBuffer, Evaluate, IntImm, PrimFunc

from tuner.engines.packed import (
    WORKSPACE,
    KernelOffer,
    PackedCandidate,
    PackedKernel,
    PackedSource,
)
from tuner.engines.relax.codegen.build import n_outputs, schedule_for_gpu
from tuner.engines.relax.codegen.cuda import nvrtc
from tuner.engines.relax.ir import traces, workloads
from tuner.engines.relax.schedules.gpu import block_limits
from tuner.engines.relax.target.targets import make_target
from tuner.engines.relax.triton import gpus, variants
from tuner.engines.relax.triton.cold_arguments import cold_arguments
from tuner.engines.relax.triton.compilation import compiler, packed_programs
from tuner.engines.relax.triton.expressions.kernel_blocks import key
from tuner.engines.relax.triton.expressions.printer import PrintError
from tuner.errors import RequestError, WorkError, install_command

_SYMBOL = "kernel"
# Tag of the shared memory of a launch, and alignment of memory that kernels share, bytes.
_SHARED, _ALIGNMENT = "tirx.use_dyn_shared_memory", 256


def offer_kernels(ir: bytes, target: str) -> KernelOffer:
    """Return the configurations of a workload; see :class:`Engine`."""
    described = make_target(target)
    arch = str(described.attrs["arch"])
    if not compiler.is_installed():
        raise RequestError(f"packs need Triton: {install_command('triton')}")
    if not compiler.supports(arch):
        raise RequestError(f"Triton compiles no kernels for {arch}")
    module = workloads.load(ir)
    function = module["main"]
    for template in variants.TEMPLATES:
        matched = template.find(function)
        if matched is not None:
            choices = template.ranked(matched, *variants.gpu_key(described))
            # What a subgraph costs, not which choice is best.
            numbers = [each for each in astuple(choices[0]) if isinstance(each, int)]
            gpu = gpus.gpu_of(*variants.gpu_key(described))
            return KernelOffer(
                names=tuple(choice.name for choice in choices),
                secs=float(template.estimate_secs(matched, np.array([numbers]), gpu)[0]),
                arguments=tuple(
                    (tuple(int(size) for size in param.shape), str(param.dtype))
                    for param in function.params
                ),
                n_outputs=n_outputs(function),
                weights=tuple(cold_arguments(function)),
            )
    return KernelOffer()


def pack_candidate(ir: bytes, target: str, name: str) -> PackedCandidate:
    """Compile the configuration of a name; see :class:`Engine`."""
    module = workloads.load(ir)
    schedule = Schedule(variants.rewrite(name, module))
    trace = traces.dump(schedule.trace, name)
    return _pack(schedule.mod, trace, make_target(target))


def print_candidates(ir: bytes, target: str, names: Sequence[str]) -> dict[str, PackedSource]:
    """Print the kernels of configurations; see :class:`Engine`."""
    module, limit = workloads.load(ir), block_limits.shared_bytes_on_request(make_target(target))
    sources = {}
    for name in names:
        try:
            program = variants.print_named(name, module["main"])
        except (WorkError, PrintError):
            continue
        schedule = Schedule(variants.marked(module, name))
        trace = traces.dump(schedule.trace, name)
        text = packed_programs.dump(program)
        sources[name] = PackedSource(trace, workloads.hash_of(schedule.mod), text, limit)
    return sources


def pack_schedule(ir: bytes, target: str, trace: str) -> PackedCandidate:
    """Compile the schedule that a library has of a subgraph; see :class:`Engine`."""
    described = make_target(target)
    scheduled = schedule_for_gpu(workloads.load(ir), trace, described)
    name = variants.name_of(scheduled["main"])
    if name and not trace:
        trace = traces.dump(Schedule(scheduled).trace, name)
    return _pack(scheduled, trace, described)


def _pack(module: tvm.IRModule, trace: str, target: Target) -> PackedCandidate:
    kernels, workspace_bytes = pack_function(module["main"], target)
    return PackedCandidate(trace, workloads.hash_of(module), kernels, workspace_bytes)


def pack_function(function: PrimFunc, target: Target) -> tuple[list[PackedKernel], int]:
    """Compile a scheduled kernel; return its parts and the size of the memory that they share.

    Raises:
        RequestError: If a compiler is not installed.
        WorkError: If it refuses the kernel, or the GPU has not enough shared memory.
    """
    program = variants.program_of(function)
    if program is None:
        module = tvm.IRModule({_SYMBOL: function.with_attr("global_symbol", _SYMBOL)})
        _, device = nvrtc.build(module, target)
        kernels, workspace_bytes = _read_host_code(module, _SYMBOL, target, device.code)
    else:
        arch = str(target.attrs["arch"])
        kernels, workspace_bytes = packed_programs.compile_program(program, arch)
    limit = block_limits.shared_bytes_on_request(target)
    largest = max(kernel.shared_bytes for kernel in kernels)
    if largest > limit:
        raise WorkError(f"a block needs {largest} bytes of shared memory, and has {limit}")
    return kernels, workspace_bytes


def read_launches(
    function: PrimFunc, target: Target, binaries: Sequence[bytes]
) -> tuple[list[PackedKernel], int]:
    """Return the kernels of a function that was compiled; see :func:`pack_function`.

    Args:
        function: Scheduled kernel with the name that it was compiled by.
        target: Target for a GPU.
        binaries: Its binaries: one for each kernel of Triton, or one for all of TVM's.

    Raises:
        WorkError: If it does more than launching kernels.
    """
    program = variants.program_of(function)
    if program is not None:
        return packed_programs.compile_program(program, str(target.attrs["arch"]))
    symbol = str(function.attrs["global_symbol"])
    return _read_host_code(tvm.IRModule({symbol: function}), symbol, target, binaries[0])


def _read_host_code(
    module: tvm.IRModule, symbol: str, target: Target, code: bytes
) -> tuple[list[PackedKernel], int]:
    workspace_bytes, kernels = 0, []
    host = nvrtc.launches(module, target)[symbol]
    places = {key(param): place for place, param in enumerate(host.params)}
    for statement in _statements(host.body):
        if isinstance(statement, AllocBuffer):
            buffer = statement.buffer
            places[key(buffer)] = WORKSPACE - workspace_bytes
            n_bytes = math.prod(map(int, buffer.shape)) * np.dtype(str(buffer.dtype)).itemsize
            workspace_bytes += -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
        elif isinstance(statement, DeclBuffer):
            places[key(statement.buffer)] = places[_buffer_of(statement.data)]
        elif isinstance(statement, Evaluate):
            kernels.append(_launched(statement.value, code, places))
    return kernels, workspace_bytes


def _launched(call: Any, code: bytes, places: dict[Any, int]) -> PackedKernel:
    """Return a kernel as a call of host code launches it.

    Raises:
        WorkError: If it takes anything but pointers.
    """
    tags = [str(tag) for tag in call.attrs.launch_params]
    name, *arguments = call.args
    pointers, numbers = arguments[: -len(tags)], arguments[-len(tags) :]
    if not all(isinstance(number, IntImm) for number in numbers):
        raise WorkError("the size of a launch is computed")
    sizes = dict(zip(tags, map(int, numbers), strict=True))
    try:
        at = tuple(places[_buffer_of(pointer)] for pointer in pointers)
    except (KeyError, AttributeError, ValueError) as error:
        raise WorkError("a kernel takes something else than its arguments") from error
    grid, block = _axes("blockIdx", sizes), _axes("threadIdx", sizes)
    shared_bytes = sizes.pop(_SHARED, 0)
    if sizes:
        raise WorkError(f"a launch has {', '.join(sizes)}")
    return PackedKernel(
        str(name.value), code, grid, block, shared_bytes, at, len(at), overlaps=False
    )


def _axes(name: str, sizes: dict[str, int]) -> tuple[int, int, int]:
    """Take the sizes of a launch along its axes."""
    return sizes.pop(f"{name}.x", 1), sizes.pop(f"{name}.y", 1), sizes.pop(f"{name}.z", 1)


def _buffer_of(data: Any) -> int:
    """Return the key of the buffer that an expression is the address of."""
    (buffer,) = data.args
    return key(buffer)


def _statements(statement: Any) -> Iterator[Any]:
    """Yield the statements of host code in their order."""
    parts = getattr(statement, "seq", None)
    body = getattr(statement, "body", None)
    for part in parts if parts is not None else () if body is None else (body,):
        yield from _statements(part)
    if parts is None and body is None:
        yield statement
