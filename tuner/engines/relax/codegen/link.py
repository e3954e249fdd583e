"""Linking of a network from the objects of its subgraphs: lowering, weight packing, programs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.relax import vm_build
from tvm.relax.backend import cpu_generic
from tvm.relax.backend.cuda import pipeline as cuda_pipeline
from tvm.target import Target
from tvm.tirx import PrimFunc

from tuner.engines.base import LinkedProgram, LinkRequest, LinkResult, ModelFile
from tuner.engines.linker import link_shared, machine_of
from tuner.engines.relax.codegen.call_rewriter import (
    LARGE_BYTES,
    CallRewriter,
    LinkableObject,
    LoopCalls,
)
from tuner.engines.relax.codegen.cpu import cpu_codegen
from tuner.engines.relax.codegen.cuda import nvrtc
from tuner.engines.relax.codegen.cuda.launch_plans import PlanMaker
from tuner.engines.relax.codegen.objects import OBJECT
from tuner.engines.relax.codegen.weights import WEIGHTS, WeightPool
from tuner.engines.relax.graph.extract import find_subgraphs
from tuner.engines.relax.graph.passes.output_views import return_views
from tuner.engines.relax.graph.pipeline import lower
from tuner.engines.relax.library.program_memory import take_memory
from tuner.engines.relax.schedules.gpu.defaults import schedule_by_default
from tuner.engines.relax.settings import PASS_CONFIG
from tuner.engines.relax.target.kinds import is_cuda
from tuner.engines.relax.target.targets import make_target
from tuner.engines.relax.triton.programs import has_counters
from tuner.engines.runtime import onednn
from tuner.engines.runtime.call_timers import compile_timers
from tuner.engines.runtime.thread_pool import compile_pool
from tuner.errors import LinkError, WorkError, described
from tuner.library.manifest import LIBRARY, KernelCall, ProgramMemory, TensorSpec

# Object of the kernels that are not subgraphs, while a library is linked.
_OTHER_KERNELS, _TIMERS = "other_kernels.o", "timers.o"


@dataclass(frozen=True)
class WrittenProgram:
    """A program of the linked module, and the objects that it calls."""

    program: LinkedProgram
    functions: dict[Any, Any]
    symbols: dict[str, str]
    loops: dict[str, LoopCalls]
    n_outputs: dict[str, int]


def link_network(request: LinkRequest) -> LinkResult:
    """Link a network; see :class:`Engine`."""
    target = make_target(request.target, intrinsics=False)
    out = Path(request.out)
    linked = {workload: LinkableObject.load(folder) for workload, folder in request.objects.items()}
    weights = WeightPool()
    written = [
        write_program(number, model, target, linked, weights)
        for number, model in enumerate(request.models)
    ]
    with described(_failure):
        calls, programs = _link(written, target, linked, out)
    entries = weights.write(out / WEIGHTS)
    return LinkResult(
        files=(LIBRARY, WEIGHTS) if entries else (LIBRARY,),
        programs=tuple(programs),
        weights=entries,
        calls=calls,
    )


def _failure(reason: str) -> LinkError:
    return LinkError(f"the library cannot be linked{reason}; report it with the model")


def write_program(
    number: int,
    model: ModelFile,
    target: Target,
    linked: dict[str, LinkableObject],
    weights: WeightPool,
) -> WrittenProgram:
    """Lower a network to a program that calls the objects of its subgraphs.

    Raises:
        LinkError: If an object is missing.
    """
    module = lower(model, target)
    subgraphs = find_subgraphs(module)
    missing = [subgraph.name for subgraph in subgraphs if subgraph.workload not in linked]
    if missing:
        raise LinkError(f"no object of subgraph {missing[0]} was given")
    objects = {name: linked[graph.workload] for graph in subgraphs for name in graph.functions}
    rewriter = CallRewriter(
        *(module, number, objects, weights),
        # Captured once, a call costs the same whatever it takes.
        min_bytes=0 if is_cuda(target) else LARGE_BYTES,
    )
    main = rewriter.rewrite()
    returned = module["main"].ret_ty
    fields = returned.fields if isinstance(returned, relax.TupleType) else [returned]
    program = LinkedProgram(
        entry=rewriter.entry,
        weights=tuple(rewriter.weights),
        calls={subgraph.workload: subgraph.n_calls for subgraph in subgraphs},
        outputs=tuple(map(_spec, fields)),
    )
    return WrittenProgram(
        program,
        {**rewriter.functions, **main},
        rewriter.symbols,
        rewriter.loops,
        rewriter.n_outputs,
    )


def _spec(kind: Any) -> TensorSpec:
    """Return shape and dtype of an output; a shape is a vector of whole numbers."""
    if isinstance(kind, relax.ShapeType):
        return ((int(kind.ndim),), "int64")
    return (tuple(int(size) for size in kind.shape.values), str(kind.dtype))


def _link(
    written: list[WrittenProgram], target: Target, linked: dict[str, LinkableObject], out: Path
) -> tuple[tuple[KernelCall, ...], list[LinkedProgram]]:
    functions = {name: code for program in written for name, code in program.functions.items()}
    symbols = {call: symbol for program in written for call, symbol in program.symbols.items()}
    loops = {name: calls for program in written for name, calls in program.loops.items()}
    with tvm.transform.PassContext(config=PASS_CONFIG), target:
        lowered = lower_programs(functions, symbols, target)
        memories: dict[str, ProgramMemory] = {}
        if is_cuda(target):
            counting = {each.symbol for each in linked.values() if has_counters(each.variant)}
            lowered, memories = take_memory(
                lowered, {call: name for call, name in symbols.items() if name in counting}
            )
        builder = relax.ExecBuilder()
        # 40 calls of a tiny kernel take 12.3 us compiled, 17.5 us as bytecode of the VM.
        generated = vm_build._vmcodegen(builder, lowered, exec_mode="compiled")
        own_functions = {
            variable: function
            for variable, function in generated.functions_items()
            if isinstance(function, PrimFunc) and variable.name_hint not in symbols
        }
        if is_cuda(target):
            with nvrtc.sources_kept():
                own_module = tvm.IRModule(own_functions)
                executable = vm_build._vmlink(builder, target, own_module, nvrtc.PIPELINE)
        else:
            # The calls between kernels, and kernels that are not subgraphs, such as reshapes.
            is_glue = {name: name.name_hint.startswith("__vmtir__") for name in own_functions}
            glue, others = (
                {name: own_functions[name] for name in own_functions if is_glue[name] is kind}
                for kind in (True, False)
            )
            # Optimising calls takes 1.3 s for ResNet-50, and makes 40 faster by 0.1 of 6.2 us.
            unoptimised = Target({**json.loads(str(target)), "opt-level": 0})
            executable = vm_build._vmlink(builder, unoptimised, tvm.IRModule(glue))
            symbols |= {name: name for name in _compile_others(others, target, out)}

    # A program calls the functions of objects under unique names.
    kernels = {call: f"__tvm_ffi_{symbol}" for call, symbol in symbols.items()}
    objects = [linkable.folder / OBJECT for linkable in linked.values()]
    has_timers = _compile_timers(kernels, objects, out / _TIMERS)
    own = [path for path in (out / _OTHER_KERNELS, out / _TIMERS) if path.exists()]
    libraries: list[Path] = []
    if any(onednn.is_call(linkable.variant) for linkable in linked.values()):
        own.append(onednn.compile_calls(out))
        libraries.append(onednn.library())
    if own and not is_cuda(target):
        own += compile_pool([*objects, *own], out)

    compiled: list[bytes] = []  # binaries of kernels that are not of objects

    def finish(path: str, files: list[str]) -> None:
        # Where no timer stands between a call and its kernel, the call is a name of the kernel.
        names = {} if has_timers else dict(kernels)
        for calls in loops.values():
            names |= {call: f"__tvm_ffi_{symbol}" for call, symbol in calls.symbols.items()}
        aliases = tuple(f"--defsym={call}={kernel}" for call, kernel in names.items())
        link_shared([*map(Path, files), *objects, *own, *libraries], Path(path), aliases)

    def pack(module: tvm.runtime.Module, _is_system: bool, _prefix: str, folder: str) -> str:
        if not is_cuda(target):
            return _pack_program(module, Path(folder))
        devices = [device for linkable in linked.values() for device in linkable.devices]
        others = nvrtc.compile_devices(module, target)
        compiled.extend(device.code for device in others)
        return nvrtc.pack_devices(module, [*others, *devices], Path(folder))

    executable.export_library(str(out / LIBRARY), fcompile=finish, fpack_imports=pack)
    for file in own:
        file.unlink()
    programs = [each.program for each in written]
    if is_cuda(target):
        by_symbol = {linkable.symbol: linkable for linkable in linked.values()}
        maker = PlanMaker(
            lowered,
            target,
            {call: by_symbol[symbol] for call, symbol in symbols.items()},
            loops,
            compiled,
            (out / LIBRARY).read_bytes(),
        )
        programs = [maker.planned(each, memories[each.entry]) for each in programs]
    return _calls(written, linked, symbols, loops) if has_timers else (), programs


def _calls(
    written: list[WrittenProgram],
    linked: dict[str, LinkableObject],
    symbols: dict[str, str],
    loops: dict[str, LoopCalls],
) -> tuple[KernelCall, ...]:
    """Return the kernel calls by their number in a profile."""
    workloads = {linkable.symbol: workload for workload, linkable in linked.items()}
    n_outputs = {call: n for program in written for call, n in program.n_outputs.items()}
    calls = []
    for call, symbol in symbols.items():
        loop = loops.get(call)
        called = symbol if loop is None else next(iter(loop.symbols.values()))
        n_runs = 1 if loop is None else loop.n_runs
        workload = workloads.get(called, "")
        calls.append(KernelCall(call, workload, n_outputs.get(call, 1), n_runs))
    return tuple(calls)


def _compile_timers(kernels: dict[str, str], objects: list[Path], out: Path) -> bool:
    """Compile a timer for each call; return False if no compiler for their machine is installed."""
    if not objects:
        return False
    try:
        compile_timers(kernels, machine_of(objects[0]), out)
    except WorkError:
        return False
    return True


def _pack_program(module: tvm.runtime.Module, folder: Path) -> str:
    """Write the object that holds the program.

    TVM takes any module compiled without optimisation for a system library, which would claim
    names in the whole process when it is loaded; the flag here prevents that.
    """
    path = folder / "program.o"
    (host,) = (imported for imported in module.imports if imported.kind == "llvm")
    pack = tvm.get_global_func("runtime.ModulePackImportsToLLVM")
    pack(module, False, host["_get_target_string"](), "").write_to_file(str(path))
    return str(path)


def lower_programs(
    functions: dict[Any, Any], symbols: dict[str, str], target: Target
) -> tvm.IRModule:
    """Run the part of TVM's default pipeline that follows fusion and scheduling.

    Kernels that became views are dropped; others outside of subgraphs are scheduled for a GPU.
    """
    pipeline = cuda_pipeline if is_cuda(target) else cpu_generic.pipeline
    passes = pipeline.dataflow_lower_passes(target) + pipeline.finalize_passes(target)
    lowered = tvm.transform.Sequential(passes)(return_views(tvm.IRModule(functions)))
    called = _called(lowered)
    kept = tvm.IRModule()
    for variable, function in lowered.functions_items():
        name = variable.name_hint
        if isinstance(function, relax.Function) or name in symbols:
            kept[variable] = function
        elif name in called:
            kept[variable] = function
            if is_cuda(target):
                module = tvm.IRModule({variable: function})
                kept[variable] = schedule_by_default(module, target)[name]
    return kept


def _called(module: tvm.IRModule) -> set[str]:
    names = set()

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.GlobalVar):
            names.add(str(expr.op.name_hint))

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return names


def _compile_others(kernels: dict[Any, Any], target: Target, out: Path) -> list[str]:
    """Compile kernels that are not subgraphs into one object; return their names."""
    if kernels:
        built = cpu_codegen.compile_kernels(tvm.IRModule(kernels), target)
        built.write_to_file(str(out / _OTHER_KERNELS), "o")
    return [str(variable.name_hint) for variable in kernels]
