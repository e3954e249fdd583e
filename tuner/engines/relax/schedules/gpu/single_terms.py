"""Reductions over a single element as plain stores, for the default schedules of a GPU.

DLight's rules drop loops over one element, and TVM then takes such a reduction for a block that
computes each element once: it inlines what follows into the initial value as well as into the sum,
so that a product of width 1 with a residual adds the residual twice.
"""

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock
from tvm.tirx import BufferStore, IterVar, PrimFunc


def store_single_terms(function: PrimFunc) -> PrimFunc:
    """Return a kernel without reductions over one element; the function itself if it has none."""
    body = tvm_ffi.structural_map(function.body, (SBlock, _without_reduction))
    return function if body.same_as(function.body) else function.with_body(body)


def _without_reduction(block: SBlock) -> SBlock:
    reduced = [axis for axis in block.iter_vars if int(axis.iter_type) == IterVar.CommReduce]
    stores = isinstance(block.init, BufferStore) and isinstance(block.body, BufferStore)
    if not (stores and reduced and all(_has_one_element(axis) for axis in reduced)):
        return block

    def initial(load: Any) -> Any:
        return block.init.value if load.source.same_as(block.init.buffer) else load

    value = tvm_ffi.structural_map(block.body.value, (ir.TensorLoad, initial))
    return SBlock(
        [IterVar(axis.dom, axis.var, IterVar.DataPar) for axis in block.iter_vars],
        block.reads,
        block.writes,
        block.name_hint,
        BufferStore(block.body.buffer, value, block.body.indices),
        None,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )


def _has_one_element(axis: IterVar) -> bool:
    return isinstance(axis.dom.extent, tirx.IntImm) and int(axis.dom.extent) == 1
