"""Properties of workloads by which tasks are compared."""

from dataclasses import replace

from tvm.tirx import PrimFunc

from tuner.engines import profiles
from tuner.engines.base import WorkloadProfile
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.ir.packed_layouts import LAYOUT_FREE
from tuner.engines.relax.schedules import catalogue


def profile(irs: list[bytes]) -> list[WorkloadProfile]:
    """Profile workloads; see :class:`Engine`."""
    modules = [workloads.load(ir) for ir in irs]
    return [
        replace(
            profiles.profile(module["main"], _weights_from_memory(module["main"])),
            variants=catalogue.flop(module),
        )
        for module in modules
    ]


def _weights_from_memory(function: PrimFunc) -> list[int]:
    """Return the indices of the weights that a call may find in memory; none for a step."""
    attributes = function.attrs or {}
    return (
        []
        if workloads.STEP in attributes
        else [int(index) for index in attributes.get(LAYOUT_FREE, ())]
    )
