"""Recognition of blocks that only move numbers: transposes, slices, concatenations."""

from typing import Any

_LOADS = ("BufferLoad", "TensorLoad")
_LEAVES = ("IntImm", "FloatImm", "Var")
_CALLS = ("prim.if_then_else", "tirx.if_then_else", "tirx.isnan")


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
