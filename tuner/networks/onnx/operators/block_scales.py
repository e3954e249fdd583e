"""Replacement of scales for blocks of computed values, which few importers know, by arithmetic."""

from math import prod

import numpy as np
from onnx import TensorProto, helper

from tuner.networks.onnx.node_builder import Replacement, UnknownValueError


def replace_block_scales(b: Replacement) -> bool:
    """Replace a QuantizeLinear or DequantizeLinear with a scale for each block of an axis.

    Returns:
        False if it has other scales, and is not of one constant number.
    """
    block = int(b.attribute("block_size", 0))
    if not block:
        return _fold_number(b)
    data, scale, zero, output = b.input(0), b.input(1), b.input(2), b.node.output[0]
    shape, dtype = b.shape(data), b.dtype(scale)
    axis = int(b.attribute("axis", 1)) % len(shape)
    kind = helper.np_dtype_to_tensor_dtype(b.dtype(zero)) if zero else TensorProto.UINT8
    places = b.constant(np.arange(shape[axis]) // block)
    scale = b.add("Gather", b.as_float(scale, dtype), places, axis=axis)
    if zero:
        zero = b.add("Cast", b.add("Gather", zero, places, axis=axis), to=TensorProto.FLOAT)
    data = b.add("Cast", data, to=TensorProto.FLOAT)
    if b.node.op_type == "DequantizeLinear":
        value = b.add("Mul", b.add("Sub", data, zero) if zero else data, scale)
        kind = int(b.attribute("output_dtype", 0)) or helper.np_dtype_to_tensor_dtype(dtype)
        b.add("Cast", value, to=kind, output=output)
        return True
    value = b.add("Round", b.add("Div", data, scale))
    if zero:
        value = b.add("Add", value, zero)
    kind = int(b.attribute("output_dtype", 0)) or kind
    none = b.constant(np.zeros((), helper.tensor_dtype_to_np_dtype(kind)))
    b.add("QuantizeLinear", value, b.number(1.0), none, output=output)
    return True


def _fold_number(b: Replacement) -> bool:
    """Compute the operator of one constant number; quantisers write two for the value of a Pad."""
    shape = b.shape(b.input(0))
    if prod(shape) != 1:
        return False
    value, scale, zero = (b.array(index) for index in range(3))
    assert value is not None
    assert scale is not None
    if zero is None:
        zero = np.zeros((), np.uint8 if b.node.op_type == "QuantizeLinear" else value.dtype)
    if scale.size != 1 or zero.dtype.kind not in "iu" or b.attribute("output_dtype", 0):
        raise UnknownValueError
    if b.node.op_type == "DequantizeLinear":
        result = (value.astype(np.int64) - zero).astype(scale.dtype) * scale
    else:
        limits = np.iinfo(zero.dtype)
        rounded = np.rint(value / scale) + zero
        result = np.clip(rounded, limits.min, limits.max).astype(zero.dtype)
    b.add("Identity", b.constant(result.reshape(shape)), output=b.node.output[0])
    return True
