"""Converters of sequences of tensors, whose lengths and positions are constant.

TVM's importer has no positions from the end, and lengths of some sequences only.
"""

from typing import Any

from tvm import relax

from tuner.engines.relax.frontend.converters.operands import constant_array
from tuner.errors import ModelError


def convert_sequence_at(_builder: Any, inputs: Any, _attrs: Any, _opset: int) -> relax.Expr:
    """Convert SequenceAt."""
    tensors = _tensors(inputs[0])
    return tensors[_position(inputs[1], len(tensors))]


def convert_sequence_erase(_builder: Any, inputs: Any, _attrs: Any, _opset: int) -> relax.Expr:
    """Convert SequenceErase, by default of the last tensor."""
    tensors = _tensors(inputs[0])
    tensors.pop(_position([*inputs, None][1], len(tensors), len(tensors) - 1))
    return relax.Tuple(tensors)


def convert_sequence_insert(_builder: Any, inputs: Any, _attrs: Any, _opset: int) -> relax.Expr:
    """Convert SequenceInsert, by default behind the last tensor."""
    tensors = _tensors(inputs[0])
    position = _position([*inputs, None][2], len(tensors), len(tensors))
    return relax.Tuple([*tensors[:position], inputs[1], *tensors[position:]])


def convert_sequence_length(_builder: Any, inputs: Any, _attrs: Any, _opset: int) -> relax.Expr:
    """Convert SequenceLength."""
    return relax.const(len(_tensors(inputs[0])), "int64")


def _tensors(sequence: relax.Expr) -> list[relax.Expr]:
    """Return the tensors of a sequence, a tuple or what computes one."""
    if isinstance(sequence, relax.Tuple):
        return [*sequence.fields]
    return [relax.TupleGetItem(sequence, index) for index in range(len(sequence.ty.fields))]


def _position(operand: relax.Expr | None, length: int, default: int | None = None) -> int:
    """Return a position from the start; the default may be behind the last tensor.

    Raises:
        ModelError: If a sequence of that length does not have it.
    """
    last = length - 1 if default is None else default
    value = constant_array(operand)
    position = last if value is None else int(value.reshape(-1)[0])
    if not -length <= position <= last:
        raise ModelError(
            f"position {position} is outside of a sequence of {length} tensors: export the model "
            "again",
            code="invalid-model",
        )
    return position + length if position < 0 else position
