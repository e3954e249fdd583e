"""Products with large weights ask for the next block of weights while they multiply the current."""

import math
import re
from itertools import islice

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply
from tvm.tirx import PrimFunc

from tests.tuner.engines.relax.conftest import draw
from tests.tuner.engines.relax.networks import relax_module
from tests.tuner.engines.relax.schedules.test_ranking import ranked_traces
from tuner.engines.base import TargetInfo
from tuner.engines.relax.codegen.build import PACK, split_packing
from tuner.engines.relax.codegen.cpu import cpu_codegen
from tuner.engines.relax.ir import traces, workloads
from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.schedules.cpu.primitives import prefetch
from tuner.engines.relax.target.targets import make_target
from tuner.engines.runs import KERNEL

_PREFETCH = "llvm.prefetch"
_LINE = 16


def product(n_rows: int, n_terms: int, n_columns: int) -> tvm.IRModule:
    """Return a workload that multiplies rows with weights."""
    module = relax_module(
        lambda _, *operands: relax.op.matmul(*operands), (n_rows, n_terms), (n_terms, n_columns)
    )
    module = relax.transform.LegalizeOps()(module)
    (function,) = (each for each in module.functions.values() if isinstance(each, PrimFunc))
    return workloads.as_workload(function.with_attr("layout_free_buffers", [1]))


def marked_trace(module: tvm.IRModule, target: TargetInfo) -> str:
    """Return the first schedule by rule that prefetches."""
    made = make_target(target.spec)
    ranked = map(traces.dump, ranked_traces(module, made))
    return next(trace for trace in islice(ranked, 4) if prefetch.MARK in trace)


def kernel_of(module: tvm.IRModule, trace: str, target: TargetInfo) -> dict[str, PrimFunc]:
    """Return the kernel of a trace, and the function that packs its weights."""
    scheduled = traces.schedule_module(module, trace, make_target(target.spec))
    return split_packing(scheduled["main"])[0]


def test_a_product_by_rule_prefetches_large_weights(target: TargetInfo) -> None:
    """It is the schedule that a library without records has."""
    trace = ranking.compute_trace(product(48, 1024, 256), make_target(target.spec))

    assert prefetch.MARK in trace


def test_many_rows_begin_without_prefetches(target: TargetInfo) -> None:
    """Waiting for a block of weights costs less than the requests, for many tiles use it."""
    module = product(400, 1024, 256)

    assert prefetch.MARK not in ranking.compute_trace(module, make_target(target.spec))
    assert marked_trace(module, target)


def test_spaces_are_left_as_they_are(target: TargetInfo) -> None:
    """A trace that lists all blocks cannot be applied with another place of the padding."""
    module = product(48, 1024, 256)
    spaces = traces.design_spaces(module, make_target(target.spec), PostOrderApply())
    before = [traces.dump(space.trace) for space in spaces]

    marked = prefetch.spaces_with_prefetch(module, spaces)

    assert [traces.dump(space.trace) for space in spaces] == before
    assert len(marked) == len(spaces)
    assert not any("GetChildBlocks" in traces.dump(space.trace) for space in marked)


def test_prefetches_change_no_output(target: TargetInfo) -> None:
    """The kernel with packed weights gives the product."""
    module = product(48, 1024, 256)
    functions = kernel_of(module, marked_trace(module, target), target)
    built = cpu_codegen.compile_kernels(tvm.IRModule(functions), make_target(target.spec))
    rows, weights = draw(48, 1024, seed=1), draw(1024, 256, seed=2)
    packed = tvm.runtime.empty([int(n) for n in functions[KERNEL].params[1].shape], "float32")
    output = tvm.runtime.empty((48, 256), "float32")

    built[PACK](tvm.runtime.tensor(weights), packed)
    built[KERNEL](tvm.runtime.tensor(rows), packed, output)

    assert _PREFETCH in functions[KERNEL].script()
    np.testing.assert_allclose(output.numpy(), rows @ weights, rtol=1e-4, atol=1e-4)


def test_the_tiles_of_a_block_ask_for_the_whole_next_block(target: TargetInfo) -> None:
    """Each tile of rows asks for a share of its lines, none for a line of another."""
    module = product(48, 1024, 256)
    kernel = kernel_of(module, marked_trace(module, target), target)[KERNEL]
    lines = kernel.script().splitlines()
    calls = [line for line in lines if _PREFETCH in line]
    loops = lines[next(i for i, line in enumerate(lines) if '"prefetch"' in line) - 1]
    n_blocks, *n_tiles = (int(extent) for extent in re.findall(r"T.int64\((\d+)\)", loops))
    *_, n_terms, n_columns = (int(size) for size in kernel.params[1].shape)

    assert n_blocks * n_terms == 1024
    assert math.prod(n_tiles) > 1
    assert len(set(calls)) == math.ceil(n_terms * n_columns / _LINE / math.prod(n_tiles))
    assert f"T.int64({n_terms * n_columns}) + " in calls[0]
    assert f" * T.int64({len(calls) * _LINE})" in calls[0]


@pytest.mark.parametrize("shape", [(48, 128, 256), (48, 256, 128)])
def test_small_weights_have_no_such_schedules(
    shape: tuple[int, int, int], target: TargetInfo
) -> None:
    """They stay in the private cache of a core."""
    module = product(*shape)
    spaces = traces.design_spaces(module, make_target(target.spec), PostOrderApply())

    assert not prefetch.spaces_with_prefetch(module, spaces)


def test_activations_have_no_such_schedules(target: TargetInfo) -> None:
    """The kernel before has just written them."""
    module = product(48, 1024, 256)
    module = tvm.IRModule({"main": module["main"].with_attr("layout_free_buffers", [])})
    spaces = traces.design_spaces(module, make_target(target.spec), PostOrderApply())

    assert not prefetch.spaces_with_prefetch(module, spaces)


def test_a_product_without_blocks_is_left_as_it_is(target: TargetInfo) -> None:
    """A mutant may have one block of all terms, or one tile of rows: there is no next block."""
    module, made = product(48, 1024, 256), make_target(target.spec)
    spaces = traces.design_spaces(module, made, PostOrderApply())
    (space, *_) = prefetch.spaces_with_prefetch(module, spaces)
    trace = space.trace
    for instruction, decision in dict(trace.decisions).items():
        if instruction.kind.name == "SamplePerfectTile":
            n = math.prod(int(size) for size in decision)
            trace = trace.with_decision(instruction, [1] * (len(decision) - 1) + [n], True)

    functions = kernel_of(module, traces.dump(trace), target)

    assert _PREFETCH not in functions[KERNEL].script()
