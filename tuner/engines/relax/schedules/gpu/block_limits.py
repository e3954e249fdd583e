"""Limits of a GPU that the blocks of a kernel must keep, as TVM's own check reads them."""

import re

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule.postproc import VerifyGPUCode
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply
from tvm.target import Target

# Attribute of kernels that were not scheduled by rules or traces.
_WRITTEN = "tirx.is_scheduled"
_SHARED_BYTES = "max_shared_memory_per_block"
# Shared memory that a block has on request, bytes (CUDA C++ Programming Guide, "Technical
# Specifications per Compute Capability"); TVM requests what kernels allocate dynamically.
_MIN_ON_REQUEST = 64 << 10
_ON_REQUEST = {
    **dict.fromkeys((80, 87), 163 << 10),
    **dict.fromkeys((86, 89, 120, 121), 99 << 10),
    **dict.fromkeys((90, 100, 103, 110), 227 << 10),
}


def are_kept(scheduled: tvm.IRModule, target: Target) -> bool:
    """Return whether the blocks of a kernel have the threads and the shared memory they need.

    TVM's sorts, which are written with their launches, and kernels with a thread for each element
    keep them by construction, and in forms that the check cannot read: sizes that depend on a loop,
    and several blocks of one name.
    """
    if any((function.attrs or {}).get(_WRITTEN) for function in scheduled.functions.values()):
        return True
    if "shared.dyn" in scheduled.script():
        target = Target({**target.export(), _SHARED_BYTES: shared_bytes_on_request(target)})
    check = VerifyGPUCode()
    generator = PostOrderApply(sch_rules=[], postprocs=[check], mutator_probs={})
    # The context tells the check what the target permits.
    context = TuneContext(mod=scheduled, target=target, space_generator=generator, num_threads=1)
    return bool(context.space_generator.postprocs[0].apply(Schedule(scheduled)))


def shared_bytes_on_request(target: Target) -> int:
    """Return the shared memory that a block may request, bytes."""
    match = re.fullmatch(r"sm_(\d+)[af]?", str(target.attrs.get("arch", "")))
    return _ON_REQUEST.get(int(match[1]) if match else 0, _MIN_ON_REQUEST)
