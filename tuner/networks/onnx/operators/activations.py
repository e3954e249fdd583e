"""Replacement of activations and norms that engines compute in float32 alone, for other types.

Narrower types are computed in float32, as ONNX Runtime does.
"""

from collections.abc import Callable

import numpy as np

from tuner.networks.onnx.node_builder import Replacement, UnknownValueError


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
