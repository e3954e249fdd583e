"""JSON form of traces, and their replay on a workload.

A stored trace holds the decisions only. The post-processors of the target
(parallelise, vectorise, unroll, decompose the reduction, pack the weights) are
run again on every replay: they are a function of the decisions, and without
them a trace is a third as long. The trace of a variant is an object with the name of the variant
and the decisions for its program.
"""

import json
from collections.abc import Iterator
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule.postproc import Postproc
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply
from tvm.s_tir.schedule import Trace
from tvm.target import Target

from tuner.engines import tvm_json
from tuner.engines.allowed_calls import check_annotations
from tuner.engines.base import variant_of
from tuner.engines.relax.graph.definitions import step_loops
from tuner.engines.relax.ir import ir_checks, packed_layouts
from tuner.engines.relax.schedules import catalogue
from tuner.engines.relax.schedules.cpu import attention, dots, packed_weights
from tuner.engines.relax.schedules.gpu import intrinsics
from tuner.engines.relax.schedules.variants.onednn import calls_onednn
from tuner.engines.relax.target.kinds import is_cuda
from tuner.engines.relax.triton import variants as triton
from tuner.engines.runtime import onednn
from tuner.errors import WorkError, summary

# Marks of workloads that pack their operands, or got them packed when the network was lowered.
_OWN_LAYOUTS = (*dots.INTRINSICS, packed_weights.MARK, attention.MARK)
# Annotation of the root block: the most iterations that threads share.
_PARALLEL = "meta_schedule.parallel"


def dump(trace: Trace, variant: str = "") -> str:
    """Serialise the decisions of a trace for a workload, or for its variant."""
    decisions = tvm_json.plain(trace.as_json(remove_postproc=True))
    named = {"variant": variant, "trace": decisions} if variant else decisions
    return json.dumps(named, separators=(",", ":"))


def replay(module: tvm.IRModule, trace: str) -> Schedule:
    """Apply the decisions of a trace to a workload, without post-processing.

    Raises:
        WorkError: If the trace does not belong to this workload or is damaged.
    """
    variant = variant_of(trace)
    check_annotations(_texts(trace))
    schedule = Schedule(catalogue.rewrite(variant, module) if variant else module)
    intrinsics.load(intrinsics.named_in(trace))
    try:
        decisions = json.loads(trace)["trace"] if variant else json.loads(trace)
        Trace.apply_json_to_schedule(_boxed(decisions), schedule)
    except (ValueError, TypeError, LookupError, RuntimeError, AttributeError) as error:
        raise WorkError(f"the trace cannot be replayed: {summary(error, last=True)}") from error
    return schedule


def schedule_module(module: tvm.IRModule, trace: str, target: Target) -> tvm.IRModule:
    """Replay a trace and post-process it; an empty trace leaves the workload unscheduled.

    Raises:
        WorkError: If it cannot be replayed or a post-processor rejects it.
    """
    return replay_and_postprocess(module, trace, target).mod if trace else module


def replay_and_postprocess(module: tvm.IRModule, trace: str, target: Target) -> Schedule:
    """Replay a trace and post-process it; the trace of the schedule then holds both.

    Weights keep their layout where the one that TVM chooses has no place for all elements.

    Raises:
        WorkError: If it cannot be replayed or a post-processor rejects it.
    """
    if onednn.is_call(variant_of(trace)) and not calls_onednn(target):
        raise WorkError("the trace calls oneDNN, which is not among the libraries of the target")
    if triton.named(variant_of(trace)) is not None:
        return replay(module, trace)
    if any(mark in trace for mark in _OWN_LAYOUTS):
        module = packed_layouts.keep_layouts(module)
    schedule = _process(module, trace, target)
    if variant_of(trace):
        return schedule  # its layouts are its own
    lossy = packed_layouts.lossy_arguments(schedule.mod)
    return (
        _process(packed_layouts.keep_layouts(module, lossy), trace, target) if lossy else schedule
    )


def _process(module: tvm.IRModule, trace: str, target: Target) -> Schedule:
    schedule = replay(module, trace)
    if step_loops.is_serial(module):
        _forbid_threads(schedule)
    context = _context(module, target, _processors(target))
    schedule.enter_postproc()
    for processor in context.space_generator.postprocs:
        if not processor.apply(schedule):
            raise WorkError(f"{type(processor).__name__} rejected the schedule")
    if step_loops.is_serial(module) and ir_checks.n_parallel(schedule.mod["main"]) > 1:
        raise WorkError("the schedule starts threads, but its kernel runs in a thread of a loop")
    return schedule


def design_spaces(
    module: tvm.IRModule, target: Target, generator: PostOrderApply
) -> list[Schedule]:
    """Generate the design spaces of a workload: schedules whose decisions are still open."""
    spaces = list(_context(module, target, generator).generate_design_space())
    if step_loops.is_serial(module):
        for space in spaces:
            _forbid_threads(space)
    return spaces


def _forbid_threads(space: Schedule) -> None:
    """Take back the decision of TVM's rules to run the outer loops in parallel."""
    root = space.get_sblock("root")
    if _PARALLEL in space.get(root).annotations:
        space.unannotate(root, _PARALLEL)


def _context(module: tvm.IRModule, target: Target, generator: PostOrderApply) -> TuneContext:
    return TuneContext(
        mod=module, target=target, space_generator=generator, num_threads=1, rand_state=1
    )


def _processors(target: Target) -> PostOrderApply:
    """Return the post-processors of a target."""
    if not is_cuda(target):
        return PostOrderApply()
    return PostOrderApply(sch_rules=[], postprocs=gpu_processors(), mutator_probs={})


def gpu_processors() -> list[Postproc]:
    """Return the post-processors of GPUs, for search and replay alike; the last one tensorises."""
    return list(Postproc.create("cuda-tensorcore"))


def _texts(trace: str) -> Iterator[str]:
    """Yield every text of a trace, the keys of its annotations among them; none if damaged."""
    try:
        values = [json.loads(trace)]
    except ValueError:
        return
    while values:
        value = values.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            values += [*value, *value.values()]
        elif isinstance(value, list):
            values += value


def _boxed(value: Any) -> Any:
    """Box numbers as TVM's trace reader expects them."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return tvm.tirx.IntImm("int32", value)
    if isinstance(value, float):
        return tvm.tirx.FloatImm("float64", value)
    if isinstance(value, dict):
        return {key: _boxed(item) for key, item in value.items()}
    return [_boxed(item) for item in value]
