"""Normalisations that importers convert in part, or inexactly."""

import numpy as np

from tuner.networks.onnx.node_builder import Replacement

# What ONNX adds to the standard deviation of MeanVarianceNormalization.
_EPSILON = 1e-9


def replace_layer_norm(b: Replacement) -> bool:
    """Compute the mean and the inverse standard deviation of a LayerNormalization on their own.

    Returns:
        False if nothing reads them.
    """
    output, mean, inverse = [*b.node.output, "", ""][:3]
    if not mean and not inverse:
        return False
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
        names = ("axis", "epsilon", "stash_type")
        given = {n: b.attribute(n) for n in names if b.attribute(n) is not None}
        b.add("LayerNormalization", *b.node.input, output=output, **given)
    return True


def replace_full_norm(b: Replacement) -> bool:
    """Give data that an RMSNormalization normalises as a whole an axis of one row.

    Importers take none over all axes.

    Returns:
        False for any other.
    """
    rank = len(b.shape(b.input(0)))
    if int(b.attribute("axis", -1)) % rank:
        return False
    names = ("epsilon", "stash_type")
    given = {n: b.attribute(n) for n in names if b.attribute(n) is not None}
    first = b.constant(np.array([0]))
    data = b.add("Unsqueeze", b.input(0), first)
    normalised = b.add("RMSNormalization", data, b.input(1), axis=1, **given)
    b.add("Squeeze", normalised, first, output=b.node.output[0])
    return True


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
