"""The contract of variants: other programs for the outputs of a workload."""

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import tvm
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.target import Target
from tvm.tirx import PrimFunc, SeqStmt

from tuner.engines.relax.ir.packed_layouts import PACKS
from tuner.engines.relax.schedules.variants.convolutions import block_of, statements_of


class Variant(Hashable, Protocol):
    """Another way to compute a kind of workload.

    A program of a variant takes the arguments of its workload and gives its outputs, so that the
    workload's references verify it and a network calls either. What it does to weights alone is a
    block with the annotation ``PACKS``, which runs once when a library is built.
    """

    @property
    def name(self) -> str:
        """Name in traces, tables and manifests; never reused for another program."""

    @property
    def growth(self) -> float:
        """Largest factor by which magnitudes in its sums exceed the definition's.

        See :func:`tuner.engines.verification.interpreter.interpret.run`.
        """

    def rewrite(self, module: tvm.IRModule) -> tvm.IRModule | None:
        """Return the unscheduled program of a workload; None if the variant does not fit it."""

    def flop(self, module: tvm.IRModule) -> float:
        """Return the floating-point operations of its program without those on weights."""

    def gain(self, program: tvm.IRModule, target: Target) -> float:
        """Estimate the time of a good schedule of the workload, over that of its first choice."""

    def choices(self, program: tvm.IRModule, target: Target) -> Sequence[Any]:
        """Return the decisions that are worth a trial, the likeliest first."""

    def schedule(self, program: tvm.IRModule, target: Target, choice: Any) -> Schedule:
        """Return its program with one of these decisions; it is a function of its arguments."""

    def name_of(self, schedule: Schedule) -> str:
        """Return the name of the variant in the trace of one of its schedules."""


def without_packing(module: tvm.IRModule) -> tvm.IRModule:
    """Return a scheduled program that takes computed weights as arguments."""
    function = module["main"]
    root = function.body.block
    kept, computed = [], []
    for statement in statements_of(function):
        block = block_of(statement)
        if block is not None and PACKS in block.annotations:
            computed.append(block.writes[0].source)
        else:
            kept.append(statement)
    if not computed:
        return module
    buffers = [
        buffer
        for buffer in root.alloc_buffers
        if not any(buffer.same_as(each) for each in computed)
    ]
    body = SeqStmt(kept) if len(kept) > 1 else kept[0]
    block = SBlock([], [], [], "root", body, None, buffers, None, root.annotations)
    parameters = [*computed, *function.params]
    realize = SBlockRealize([], True, block)
    return tvm.IRModule({"main": PrimFunc(parameters, realize, function.ret_type, function.attrs)})
