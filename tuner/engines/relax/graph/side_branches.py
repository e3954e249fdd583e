"""Branches that meet a sum behind it, in the expression that reads both.

TVM inlines no exponential and no choice into what reads it. Left as blocks of their own behind a
product, they keep it from having any tiled schedule, by rule or by search.
"""

from contextlib import suppress
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc

from tuner.engines.relax.ir.rebuilt import with_kernels
from tuner.engines.relax.schedules.cpu.primitives.blocks import is_reduction

# Besides choices between two values.
_NEVER_INLINED = ("tirx.exp", "tirx.if_then_else")


def inline_side_branches(module: tvm.IRModule) -> tvm.IRModule:
    """Inline what no sum leads to, where it is read element by element."""
    return with_kernels(module, _inlined)


def _inlined(function: PrimFunc) -> PrimFunc:
    if not _is_kept_apart(function.body):
        return function
    schedule = Schedule(function)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    waiting = [block for block in blocks if is_reduction(schedule, block)]
    # Schedules of several sums, as attention has them, inline what they read themselves.
    if len(waiting) != 1:
        return function
    behind: set[str] = set()
    while waiting:
        for reader in schedule.get_consumers(waiting.pop()):
            if _name(schedule, reader) not in behind:
                behind.add(_name(schedule, reader))
                waiting.append(reader)
    for block in blocks:
        readers = schedule.get_consumers(block)
        if (
            readers
            and _name(schedule, block) not in behind
            and not any(is_reduction(schedule, each) for each in (block, *readers))
            and _is_kept_apart(schedule.get(block).body)
        ):
            with suppress(ScheduleError):
                schedule.compute_inline(block)
    return schedule.mod["main"]


def _is_kept_apart(statement: Any) -> bool:
    """Return whether a statement has a function that TVM inlines into nothing."""
    kept: list[Any] = []

    def visit(call: Any) -> None:
        if getattr(call.op, "name", "") in _NEVER_INLINED:
            kept.append(call)

    tvm_ffi.structural_walk(statement, [(ir.Call, visit), (tirx.Select, kept.append)])
    return bool(kept)


def _name(schedule: Schedule, block: SBlockRV) -> str:
    return str(schedule.get(block).name_hint)
