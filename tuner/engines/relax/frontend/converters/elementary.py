"""Converters to operators of Relax where TVM's importer emits kernels.

A pass over the graph sees a kernel as a black box: it has no layout rule and no pattern.
"""

from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx import onnx_frontend

from tuner.engines.relax.frontend.converters.operands import as_text, constant_array
from tuner.engines.relax.graph.fold import FOLDABLE_DTYPES
from tuner.errors import ModelError

_FLOATS = {"float16", "float32", "float64"}
_PAD_MODES = {
    "constant": "constant",
    "edge": "replicate",
    "reflect": "reflect",
    "wrap": "circular",
}


def convert_clip(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
    """Convert Clip to a maximum and a minimum; a bound that is NaN or missing is none."""
    data = inputs[0]
    if opset < 11:
        numbers = (attrs.get(name) for name in ("min", "max"))
        dtype = str(data.ty.dtype)
        bounds = [None if number is None else relax.const(number, dtype) for number in numbers]
    else:
        bounds = [*inputs[1:], None, None][:2]
    limits = (-np.inf, np.inf)
    for op, bound, limit in zip((relax.op.maximum, relax.op.minimum), bounds, limits, strict=True):
        if bound is None:
            continue
        shown, dtype, is_constant = bound, str(bound.ty.dtype), isinstance(bound, GenericConst)
        if is_constant and dtype in FOLDABLE_DTYPES and np.isnan(bound.value.numpy()).any():
            continue
        if not is_constant and dtype in _FLOATS:
            is_nan = builder.normalize(relax.op.isnan(bound))
            shown = builder.normalize(relax.op.where(is_nan, relax.const(limit, dtype), bound))
        data = builder.normalize(op(data, shown))
    return data


def convert_pad(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
    """Convert Pad, but that of other types by a number, which TVM converts.

    Negative widths crop before the others repeat what is left.
    """
    data, mode = inputs[0], as_text(attrs.get("mode", "constant"))
    is_constant = mode == "constant"
    is_other = is_constant and str(data.ty.dtype) not in _FLOATS
    if is_other or opset < 11 or mode not in _PAD_MODES:
        convert = onnx_frontend.Pad.get_converter(opset)
        return convert(builder, inputs, attrs, [{}, {}])
    padded = [*inputs, None, None][:4]
    before, after, value = onnx_frontend.Pad._parse_pads_and_axes(padded, [{}, {}])
    widths = [int(width) for pair in zip(before, after, strict=True) for width in pair]
    if min(widths) < 0 and not is_constant:
        starts = [max(0, -width) for width in widths[::2]]
        ends = [
            int(n) + min(0, width) for n, width in zip(data.ty.shape, widths[1::2], strict=True)
        ]
        data = builder.emit(relax.op.strided_slice(data, [*range(len(starts))], starts, ends))
        widths = [max(0, width) for width in widths]
    return relax.op.nn.pad(data, widths, _PAD_MODES[mode], float(value))


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
