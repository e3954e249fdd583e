"""Replacement of the operators that ONNX Runtime's optimiser writes for diffusion models.

ONNX Runtime runs them on GPUs alone.
"""

from collections.abc import Callable
from math import sqrt

import numpy as np
from onnx import helper

from tuner.networks.onnx.node_builder import Replacement, UnknownValueError

_TO_CHANNELS_FIRST = [0, 3, 1, 2]
_TO_CHANNELS_LAST = [0, 2, 3, 1]


def _group_norm(b: Replacement) -> None:
    dtype = b.dtype(b.input(0), b.input(1))
    _normalise_groups(b, b.as_float(b.input(0), dtype), dtype)


def _skip_group_norm(b: Replacement) -> None:
    """Replace a sum and its norm; what is added may be one number for each channel."""
    dtype = b.dtype(b.input(0), b.input(3))
    skip, shape = b.input(3), b.shape(b.input(3))
    if len(shape) == 2:
        skip = b.reshape(skip, shape[0], 1, 1, shape[1])
    total = b.add("Add", b.as_float(b.input(0), dtype), b.as_float(skip, dtype))
    if b.input(4):
        total = b.add("Add", total, b.as_float(b.input(4), dtype))
    if any(b.node.output[1:]):
        b.from_float(total, dtype, b.node.output[1])
    _normalise_groups(b, total, dtype)


def _normalise_groups(b: Replacement, value: str, dtype: np.dtype[np.generic]) -> None:
    """Append the norm of groups of channels; ``value`` has at least 32 bits."""
    shape = b.shape(b.input(0))
    is_last, n_groups = bool(b.attribute("channels_last", 1)), int(b.attribute("groups"))
    if len(shape) != 4:
        raise UnknownValueError
    if is_last:
        value = b.add("Transpose", value, perm=_TO_CHANNELS_FIRST)
        shape = tuple(shape[axis] for axis in _TO_CHANNELS_FIRST)
    wide = np.promote_types(dtype, np.float32)
    one, zero = (b.constant(np.full(n_groups, each, wide)) for each in (1, 0))
    groups = b.reshape(value, shape[0], n_groups, -1)
    epsilon = b.attribute("epsilon", 1e-5)
    normed = b.add("InstanceNormalization", groups, one, zero, epsilon=epsilon)
    value = b.reshape(normed, *shape)
    # ONNX Runtime keeps scale and shift as float32, whatever the type of the data is.
    kind = helper.np_dtype_to_tensor_dtype(wide)
    scale, shift = (b.reshape(b.add("Cast", b.input(index), to=kind), -1, 1, 1) for index in (1, 2))
    value = b.add("Add", b.add("Mul", value, scale), shift)
    if b.attribute("activation"):
        value = b.add("Mul", value, b.add("Sigmoid", value))
    if is_last:
        value = b.add("Transpose", value, perm=_TO_CHANNELS_LAST)
    b.from_float(value, dtype, b.node.output[0])


def _bias_add(b: Replacement) -> None:
    total = b.add("Add", b.input(0), b.input(1))
    b.add("Add", total, b.input(2), output=b.node.output[0])


def _bias_split_gelu(b: Replacement) -> None:
    """Replace by one half of the columns times the activation of the other half."""
    dtype, half = b.dtype(b.input(0), b.input(1)), b.shape(b.input(1))[0] // 2
    total = b.add("Add", b.input(0), b.input(1))
    left, right = (
        b.add("Slice", total, *(b.constant(np.array([each])) for each in (start, start + half, -1)))
        for start in (0, half)
    )
    middle, one, root = (b.constant(np.array(each, dtype)) for each in (0.5, 1, sqrt(2)))
    grown = b.add("Add", b.add("Erf", b.add("Div", right, root)), one)
    gelu = b.add("Mul", b.add("Mul", right, middle), grown)
    b.add("Mul", left, gelu, output=b.node.output[0])


def _nhwc_conv(b: Replacement) -> None:
    """Replace by a convolution between transposes; weights are (outputs, *kernel, inputs)."""
    attributes = {item.name: helper.get_attribute_value(item) for item in b.node.attribute}
    operands = [b.add("Transpose", b.input(i), perm=_TO_CHANNELS_FIRST) for i in (0, 1)]
    value = b.add("Conv", *operands, *b.node.input[2:], **attributes)
    b.add("Transpose", value, perm=_TO_CHANNELS_LAST, output=b.node.output[0])


DIFFUSION: dict[str, Callable[[Replacement], None]] = {
    "BiasAdd": _bias_add,
    "BiasSplitGelu": _bias_split_gelu,
    "GroupNorm": _group_norm,
    "NhwcConv": _nhwc_conv,
    "SkipGroupNorm": _skip_group_norm,
}
