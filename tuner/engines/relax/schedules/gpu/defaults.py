"""Default schedules for GPUs: kernels without a record, and kernels that are not subgraphs."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.transform import DefaultGPUSchedule
from tvm.target import Target
from tvm.tirx import BufferStore, IterVar, PrimFunc

from tuner.engines.relax.codegen.cuda import nvrtc
from tuner.engines.relax.ir.rebuilt import rebuilt_block, with_body
from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.schedules.base import Workload
from tuner.engines.relax.schedules.gpu import block_limits
from tuner.errors import WorkError, summary


def schedule_by_default(module: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Give a kernel without a record the first default schedule that a GPU can run.

    Raises:
        WorkError: If there is none.
    """
    ((variable, function),) = module.functions_items()
    plain = tvm.IRModule({"main": store_single_terms(function)})
    reason = ""
    for scheduled in _scheduled(plain, target):
        kernel = tvm.IRModule({variable: scheduled["main"]})
        try:
            nvrtc.lower(kernel, target)
        except Exception as error:  # DLight's rules accept schedules that TVM's passes refuse
            reason = summary(error)
            continue
        if block_limits.are_kept(kernel, target):
            return kernel
        reason = "a block needs more threads or shared memory than the GPU has"
    raise WorkError(f"it has no default schedule for a GPU: {reason}")


def _scheduled(module: tvm.IRModule, target: Target) -> Iterator[tvm.IRModule]:
    """Yield the schedules of the catalogue for a kernel, then one thread per element."""
    for _, trace in ranking.ranked(Workload(module, target)):
        schedule = Schedule(module)
        trace.apply_to_schedule(schedule, remove_postproc=False)
        yield schedule.mod
    with suppress(Exception), target:  # as a rule, for kernels of more than one block
        yield DefaultGPUSchedule()(module)


def store_single_terms(function: PrimFunc) -> PrimFunc:
    """Return a kernel without reductions over one element; the function itself if it has none.

    DLight's rules drop loops over one element, and TVM then takes such a reduction for a block that
    computes each element once: it inlines what follows into the initial value as well as into the
    sum, so that a product of width 1 with a residual adds the residual twice.
    """
    body = tvm_ffi.structural_map(function.body, (SBlock, _without_reduction))
    return with_body(function, body)


def _without_reduction(block: SBlock) -> SBlock:
    reduced = [axis for axis in block.iter_vars if int(axis.iter_type) == IterVar.CommReduce]
    stores = isinstance(block.init, BufferStore) and isinstance(block.body, BufferStore)
    extents = [axis.dom.extent for axis in reduced]
    is_single = all(isinstance(n, tirx.IntImm) and int(n) == 1 for n in extents)
    if not (stores and reduced and is_single):
        return block

    def initial(load: Any) -> Any:
        return block.init.value if load.source.same_as(block.init.buffer) else load

    value = tvm_ffi.structural_map(block.body.value, (ir.TensorLoad, initial))
    return rebuilt_block(
        block,
        iter_vars=[IterVar(axis.dom, axis.var, IterVar.DataPar) for axis in block.iter_vars],
        body=BufferStore(block.body.buffer, value, block.body.indices),
        init=None,
    )
