"""Blocks of a schedule: names, axes, the inlining of some, and those that only move numbers."""

from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

#: Kinds of axes.
SPATIAL, REDUCTION = 0, 2
#: Pragma that has TVM cut a loop where a condition inside it begins to hold.
LOOP_CUT = "pragma_loop_partition_hint"
_LOADS = ("BufferLoad", "TensorLoad")
_LEAVES = ("IntImm", "FloatImm", "Var")
_CALLS = ("prim.if_then_else", "tirx.if_then_else", "tirx.isnan")


def name_of(schedule: Schedule, block: SBlockRV) -> str:
    """Return the name of a block."""
    return str(schedule.get(block).name_hint)


def axes_of(schedule: Schedule, block: SBlockRV, kind: int) -> list[Any]:
    """Return the axes of one kind of a block."""
    return [axis for axis in schedule.get(block).iter_vars if int(axis.iter_type) == kind]


def extents_of(schedule: Schedule, block: SBlockRV, kind: int) -> list[int]:
    """Return the extents of the axes of one kind of a block."""
    return [int(axis.dom.extent) for axis in axes_of(schedule, block, kind)]


def is_reduction(schedule: Schedule, block: SBlockRV) -> bool:
    """Return whether a block reduces an axis."""
    return bool(axes_of(schedule, block, REDUCTION))


def only_reduction(schedule: Schedule) -> SBlockRV | None:
    """Return the block that reduces an axis; None if there is another number of them."""
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    reductions = [block for block in blocks if is_reduction(schedule, block)]
    return reductions[0] if len(reductions) == 1 else None


def uses(index: Any, variable: Any) -> bool:
    """Return whether an expression depends on a variable."""
    return any(variable.same_as(each) for each in tirx.analysis.undefined_vars(index))


def is_free_to_inline(schedule: Schedule, block: SBlockRV) -> bool:
    """Return whether inlining a block repeats no work and hides no vectors from reductions."""
    consumers = schedule.get_consumers(block)
    if not consumers or is_reduction(schedule, block):
        return False
    if any(is_reduction(schedule, each) for each in consumers):
        return False
    return len(consumers) == 1 or is_movement(schedule.get(block))


def inline_copies(schedule: Schedule) -> None:
    """Inline the plain copies before the first reduction, such as the data of a 1x1 convolution."""
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        if is_reduction(schedule, block):
            return
        if is_copy(schedule.get(block)) and schedule.get_consumers(block):
            schedule.compute_inline(block)


def is_movement(block: Any) -> bool:
    """Return whether a block stores what it loads, at other indices or under conditions."""
    return block.init is None and _moves(getattr(block.body, "value", None))


def is_copy(block: Any) -> bool:
    """Return whether a block stores what it loads, under no condition."""
    return block.init is None and type(getattr(block.body, "value", None)).__name__ in _LOADS


def _moves(value: Any) -> bool:
    name = type(value).__name__
    if name in _LOADS or name in _LEAVES:
        return True
    if name == "Cast":
        return _moves(value.value)
    if name == "Select":
        return _moves(value.true_value) and _moves(value.false_value)
    # The first argument is a condition.
    return name == "Call" and value.op.name in _CALLS and all(map(_moves, value.args[1:]))
