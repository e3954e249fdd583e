"""Replacement of normalisations and activations that importers convert in part, or inexactly.

Types for which engines have no kernel are computed in float32, as ONNX Runtime does.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tuner.networks.onnx.node_builder import Replacement, UnknownValueError

# What ONNX adds to the standard deviation of MeanVarianceNormalization.
_EPSILON = 1e-9


def _in_own_type(compute: Callable[[Replacement, str], str]) -> Callable[[Replacement], bool]:
    """Return the replacement of an operator by a computation in a type of at least 32 bits.

    Args:
        compute: Appends the computation on a value of the type.
    """

    def replace(b: Replacement) -> bool:
        dtype = b.dtype(b.input(0))
        if dtype == np.float32:
            return False
        b.from_float(compute(b, b.as_float(b.input(0), dtype)), dtype, b.node.output[0])
        return True

    return replace


def _number(b: Replacement, number: float) -> str:
    return b.constant(np.array(number, np.promote_types(b.dtype(b.input(0)), np.float32)))


def _elu(b: Replacement, value: str) -> str:
    return _grow(b, value, float(b.attribute("alpha", 1.0)))


def _selu(b: Replacement, value: str) -> str:
    # The defaults are the paper's numbers (self-normalising networks), rounded to float32.
    grown = _grow(b, value, float(b.attribute("alpha", np.float32(1.67326319217681884765625))))
    gamma = float(b.attribute("gamma", np.float32(1.05070102214813232421875)))
    return b.add("Mul", grown, _number(b, gamma))


def _grow(b: Replacement, value: str, alpha: float) -> str:
    """Return values above 0 as they are, and others as ``alpha * (exp(x) - 1)``."""
    zero, one = _number(b, 0), _number(b, 1)
    is_negative = b.add("Less", value, zero)
    # The exponential of a large number is infinite, though it is not chosen.
    least = b.add("Where", is_negative, value, zero)
    below = b.add("Mul", b.add("Sub", b.add("Exp", least), one), _number(b, alpha))
    return b.add("Where", is_negative, below, value)


def _thresholded_relu(b: Replacement, value: str) -> str:
    is_above = b.add("Greater", value, _number(b, float(b.attribute("alpha", 1.0))))
    return b.add("Where", is_above, value, _number(b, 0))


def _lrn(b: Replacement, value: str) -> str:
    """Return values divided by a power of the mean square of the channels around them."""
    shape, size = b.shape(b.input(0)), int(b.attribute("size"))
    if len(shape) < 3:
        raise UnknownValueError
    squares = b.reshape(b.add("Mul", value, value), shape[0], 1, shape[1], -1)
    pads = [(size - 1) // 2, 0, size // 2, 0]
    means = b.add("AveragePool", squares, kernel_shape=[size, 1], pads=pads, count_include_pad=1)
    scaled = b.add("Mul", b.reshape(means, *shape), _number(b, b.attribute("alpha", 1e-4)))
    total = b.add("Add", scaled, _number(b, b.attribute("bias", 1.0)))
    return b.add("Div", value, b.add("Pow", total, _number(b, b.attribute("beta", 0.75))))


ACTIVATIONS: dict[str, Callable[[Replacement], bool | None]] = {
    "Elu": _in_own_type(_elu),
    "LRN": _in_own_type(_lrn),
    "Selu": _in_own_type(_selu),
    "ThresholdedRelu": _in_own_type(_thresholded_relu),
}


def replace_layer_norm(b: Replacement) -> bool:
    """Compute the mean and the inverse standard deviation of a LayerNormalization on their own.

    Returns:
        False if nothing reads them, and the scale and the shift have the shape of a row.
    """
    output, mean, inverse = [*b.node.output, "", ""][:3]
    if not mean and not inverse:
        return _fill_scales(b)
    rank, axis = len(b.shape(b.input(0))), int(b.attribute("axis", -1))
    axes, dtype = range(axis % rank, rank), b.dtype(b.input(0))
    data = b.as_float(b.input(0), dtype)
    average = b.reduce("ReduceMean", data, *axes)
    centred = b.add("Sub", data, average)
    variance = b.reduce("ReduceMean", b.add("Mul", centred, centred), *axes)
    kind = np.promote_types(dtype, np.float32)
    epsilon, one = (b.constant(np.array(n, kind)) for n in (b.attribute("epsilon", 1e-5), 1))
    deviation = b.add("Sqrt", b.add("Add", variance, epsilon))
    if mean:
        b.add("Identity", average, output=mean)
    if inverse:
        b.add("Div", one, deviation, output=inverse)
    if output:
        b.add("LayerNormalization", *b.node.input, output=output, **_options(b))
    return True


def replace_full_norm(b: Replacement) -> bool:
    """Give data that an RMSNormalization normalises as a whole an axis of one row.

    Importers take none over all axes.

    Returns:
        False for any other whose scale has the shape of a row.
    """
    rank = len(b.shape(b.input(0)))
    if int(b.attribute("axis", -1)) % rank:
        return _fill_scales(b)
    first = b.constant(np.array([0]))
    data = b.add("Unsqueeze", b.input(0), first)
    options = {**_options(b), "axis": 1}
    normalised = b.add("RMSNormalization", data, b.input(1), **options)
    b.add("Squeeze", normalised, first, output=b.node.output[0])
    return True


def _fill_scales(b: Replacement) -> bool:
    """Give the scale and the shift of a normalisation the shape of the rows that it takes.

    Returns:
        False if they have it.
    """
    rows = b.shape(b.input(0))[int(b.attribute("axis", -1)) :]

    def fill(name: str) -> str:
        shape = b.shape(name) if name else rows
        if shape == rows:
            return name
        if any(size != 1 for size in shape[: -len(rows)]):
            raise UnknownValueError
        return b.reshape(b.add("Expand", name, b.constant(np.array(rows))), *rows)

    filled = [fill(name) for name in b.node.input[1:]]
    if filled == [*b.node.input[1:]]:
        return False
    b.add(b.node.op_type, b.input(0), *filled, output=b.node.output[0], **_options(b))
    return True


def _options(b: Replacement) -> dict[str, Any]:
    names = ("axis", "epsilon", "stash_type")
    return {name: b.attribute(name) for name in names if b.attribute(name) is not None}


def replace_mean_variance(b: Replacement) -> None:
    """Replace a MeanVarianceNormalization, whose variance must not be a difference of squares."""
    axes = [int(axis) for axis in b.attribute("axes", [0, 2, 3])]
    dtype = b.dtype(b.input(0))
    data = b.as_float(b.input(0), dtype)
    centred = b.add("Sub", data, b.reduce("ReduceMean", data, *axes))
    variance = b.reduce("ReduceMean", b.add("Mul", centred, centred), *axes)
    epsilon = b.constant(np.array(_EPSILON, np.promote_types(dtype, np.float32)))
    deviation = b.add("Add", b.add("Sqrt", variance), epsilon)
    b.from_float(b.add("Div", centred, deviation), dtype, b.node.output[0])
