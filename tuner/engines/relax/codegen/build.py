"""Build one candidate into an artifact: a shared library and a description of its arguments."""

import json
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.target import Target
from tvm.tirx import BufferStore, PrimFunc

from tuner.engines.base import BuildRequest, BuildResult, variant_of
from tuner.engines.linker import link_shared
from tuner.engines.relax.codegen.cpu import cpu_codegen
from tuner.engines.relax.codegen.cuda import nvrtc
from tuner.engines.relax.graph.definitions import step_loops
from tuner.engines.relax.ir import ir_checks, traces, workloads
from tuner.engines.relax.ir.blobs import DeviceModule
from tuner.engines.relax.ir.packed_layouts import LAYOUT_FREE, PACKS
from tuner.engines.relax.schedules import catalogue
from tuner.engines.relax.schedules.cpu.primitives.prefetch import insert_prefetches
from tuner.engines.relax.schedules.cpu.primitives.spread_loads import split_vectors, spread_loads
from tuner.engines.relax.schedules.gpu.defaults import schedule_by_default
from tuner.engines.relax.target.kinds import is_cuda
from tuner.engines.relax.target.targets import make_target
from tuner.engines.relax.triton import variants as triton
from tuner.engines.relax.triton.cold_arguments import cold_arguments
from tuner.engines.relax.triton.compilation import host
from tuner.engines.runs import KERNEL
from tuner.engines.runtime import onednn
from tuner.errors import WorkError, error_text

PACK = "pack"
LIBRARY = "kernel.so"
DESCRIPTION = "kernel.json"


def build(request: BuildRequest) -> BuildResult:
    """Build a candidate; see :class:`Engine`."""
    try:
        return _build(request)
    except WorkError as error:
        return BuildResult("", str(error))
    except OSError:
        raise  # a full disk is not a failure of the candidate
    except Exception as error:  # any error of a compiler on a candidate is a result
        return BuildResult("", error_text(error))


def _build(request: BuildRequest) -> BuildResult:
    target = make_target(request.target)
    module = workloads.load(request.ir)
    out = Path(request.out)
    out.mkdir(parents=True, exist_ok=True)
    compile_for = _compile_for_gpu if is_cuda(target) else _compile_for_cpu
    packed = compile_for(module, request.trace, target, out)
    weights = (cold_arguments if is_cuda(target) else weight_indices)(module["main"])
    describe(module, weights, packed, out, variant_of(request.trace))
    return BuildResult(str(out))


def describe(
    module: tvm.IRModule,
    weights: list[int],
    packed: list[dict[str, Any]],
    out: Path,
    variant: str = "",
) -> None:
    """Write the description of the arguments of a kernel into the folder of its artifact."""
    description = {
        "arguments": [_describe(param) for param in module["main"].params],
        "n_outputs": n_outputs(module["main"]),
        "packed": packed,
        "weights": weights,
        "is_step": step_loops.is_step(module),
        "variant": variant,
        "is_loose": bool(variant) and catalogue.named(variant).growth > 1.0,
    }
    (out / DESCRIPTION).write_text(json.dumps(description))


def weight_indices(function: PrimFunc) -> list[int]:
    """Return the indices of the arguments that are weights, as the pass pipeline marked them.

    The mark is part of the workload's hash: a subgraph that takes weights in one network and
    activations in another is two workloads.
    """
    attributes = function.attrs or {}
    return [int(index) for index in attributes.get(LAYOUT_FREE, ())]


def _compile_for_gpu(
    module: tvm.IRModule, trace: str, target: Target, out: Path
) -> list[dict[str, Any]]:
    scheduled = schedule_for_gpu(module, trace, target)
    built, devices = build_for_gpu(scheduled["main"].with_attr("global_symbol", KERNEL), target)
    nvrtc.export(built, devices, out / LIBRARY)
    return []


def build_for_gpu(
    function: PrimFunc, target: Target
) -> tuple[tvm.runtime.Module, list[DeviceModule]]:
    """Compile a scheduled kernel to host code and device binaries.

    Raises:
        RequestError: If a compiler is not installed.
        WorkError: If it refuses the kernel.
    """
    program = triton.program_of(function)
    if program is not None:
        return host.build(function, program, target)
    symbol = str(function.attrs["global_symbol"])
    built, device = nvrtc.build(tvm.IRModule({symbol: function}), target)
    return built, [device]


def schedule_for_gpu(module: tvm.IRModule, trace: str, target: Target) -> tvm.IRModule:
    """Replay a trace, or apply a default schedule without one: a GPU runs nothing unscheduled.

    Raises:
        WorkError: If it cannot be replayed, or there is no default schedule.
    """
    if trace:
        return traces.schedule_module(module, trace, target)
    return triton.by_default(module, target) or schedule_by_default(module, target)


def _compile_for_cpu(
    module: tvm.IRModule, trace: str, target: Target, out: Path
) -> list[dict[str, Any]]:
    scheduled = traces.schedule_module(module, trace, target)
    functions, packed = split_packing(scheduled["main"])
    kernel = out / "kernel.o"
    cpu_codegen.compile_kernels(tvm.IRModule(functions), target).write_to_file(str(kernel), "o")
    is_call = onednn.is_call(variant_of(trace))
    made = [kernel, onednn.compile_calls(out)] if is_call else [kernel]
    link_shared([*made, onednn.library()] if is_call else made, out / LIBRARY)
    for file in made:
        file.unlink()
    return packed


def split_packing(function: PrimFunc) -> tuple[dict[str, PrimFunc], list[dict[str, Any]]]:
    """Split the packing of weights from a scheduled kernel, as the network build does.

    Returns:
        The functions to build (``kernel`` and, if anything is packed, ``pack``), and for
        every packed argument its index, shape and dtype after packing.
    """
    if not ir_checks.is_annotated(function, PACKS):
        kernel = _finish(function)
        return {KERNEL: kernel.with_attr("global_symbol", KERNEL)}, []
    split = relax.transform.SplitLayoutRewritePreproc()(_caller_of(function))
    kernel = _finish(split[f"{KERNEL}_prepacked"])
    kernel = kernel.with_attr("global_symbol", KERNEL)
    pack = split[f"{KERNEL}_weight_prepack"].with_attr("global_symbol", PACK)
    outputs = list(pack.params)[len(pack.params) // 2 :]
    packed = [
        {"index": index, **_describe(param)}
        for index, param in zip(_packed_arguments(split), outputs, strict=True)
    ]
    return {KERNEL: kernel, PACK: pack}, packed


def _finish(function: PrimFunc) -> PrimFunc:
    """Apply what the annotations and vectors of a scheduled kernel request."""
    return split_vectors(spread_loads(insert_prefetches(function)))


def n_outputs(function: PrimFunc) -> int:
    """Count the arguments that a kernel writes, which are its last.

    Raises:
        WorkError: If it writes another argument, or none.
    """
    written = [
        any(param.same_as(buffer) for buffer in _written(function)) for param in function.params
    ]
    n_written = sum(written)
    if not n_written or not all(written[-n_written:]):
        raise WorkError("the outputs of the kernel are not its last arguments")
    return n_written


def _written(function: PrimFunc) -> list[Any]:
    """Return the buffers that a kernel stores to."""
    buffers = []

    def visit(statement: Any) -> None:
        if isinstance(statement, BufferStore):
            buffers.append(statement.buffer)
        for child in ("block", "body", "then_case", "else_case"):
            if (inner := getattr(statement, child, None)) is not None:
                visit(inner)
        for inner in getattr(statement, "seq", ()):
            visit(inner)

    visit(function.body)
    return buffers


def _caller_of(function: PrimFunc) -> tvm.IRModule:
    """Return a Relax module whose ``main`` calls the kernel once."""
    builder = relax.BlockBuilder()
    kernel = builder.add_func(function.with_attr("global_symbol", KERNEL), KERNEL)
    types = [relax.TensorType([int(d) for d in p.shape], str(p.dtype)) for p in function.params]
    n_inputs = len(types) - n_outputs(function)
    arguments = [relax.Var(f"argument_{i}", ty) for i, ty in enumerate(types[:n_inputs])]
    results = types[n_inputs:] if len(types) > n_inputs + 1 else types[n_inputs]
    with builder.function("main", arguments):
        with builder.dataflow():
            output = builder.emit_output(relax.call_tir(kernel, arguments, results))
        builder.emit_func_output(output)
    return builder.get()


def _packed_arguments(split: tvm.IRModule) -> list[int]:
    """Return the indices of the kernel's arguments that the packing call takes, in its order."""
    names = [str(param.name) for param in split["main"].params]
    calls = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and getattr(expr.op, "name", "") == "relax.call_tir":
            calls.append(expr)

    relax.analysis.post_order_visit(split["main"], visit)
    (pack,) = (call for call in calls if call.args[0].name_hint == f"{KERNEL}_weight_prepack")
    return [names.index(str(argument.name)) for argument in pack.args[1].fields]


def _describe(param: Any) -> dict[str, Any]:
    return {"shape": [int(dim) for dim in param.shape], "dtype": str(param.dtype)}
