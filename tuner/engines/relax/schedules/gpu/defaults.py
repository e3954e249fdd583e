"""Default schedules for GPUs: kernels without a record, and kernels that are not subgraphs."""

from collections.abc import Iterator
from contextlib import suppress

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.transform import DefaultGPUSchedule
from tvm.target import Target

from tuner.engines.relax.codegen import nvrtc
from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.schedules.base import Workload
from tuner.engines.relax.schedules.gpu import block_limits
from tuner.engines.relax.schedules.gpu.single_terms import store_single_terms
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
