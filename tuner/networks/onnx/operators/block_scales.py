"""Replacement of scales for blocks of computed values, which few importers know, by arithmetic."""

import numpy as np
from onnx import TensorProto, helper

from tuner.networks.onnx.node_builder import Replacement


def replace_block_scales(b: Replacement) -> bool:
    """Replace a QuantizeLinear or DequantizeLinear with a scale for each block of an axis.

    Returns:
        False if it has other scales.
    """
    block = int(b.attribute("block_size", 0))
    if not block:
        return False
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
