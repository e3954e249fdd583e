"""Replacement of DFT and STFT by products with constant matrices.

A matrix of a transform of usual length fits a cache, and its product runs at the speed of the
machine, whereas no importer has an operator for it.
"""

import numpy as np

from tuner.networks.onnx.graph import Array
from tuner.networks.onnx.node_builder import Replacement, UnknownValueError


def replace_dft(b: Replacement) -> None:
    """Replace DFT of constant length.

    Raises:
        UnknownValueError: If the length is computed.
        ModelError: If the matrix is too large.
    """
    data = b.input(0)
    *dims, n_parts = b.shape(data)
    if b.opset < 20:
        axis = int(b.attribute("axis", 1))
    else:
        given = b.array(2)
        axis = -2 if given is None else int(given.reshape(-1)[0])
    # The last dimension holds real and imaginary parts; axes count it, too.
    axis %= len(dims) + 1
    length, inverse, onesided = b.array(1), bool(b.attribute("inverse", 0)), _is_onesided(b, 0)
    if axis == len(dims):
        raise ValueError(f"axis {axis} has the parts of the numbers")
    n = dims[axis]
    size = 2 * (n - 1) if inverse and onesided else n
    if length is not None:
        size = int(length.reshape(-1)[0])
    b.check_table(n, n_parts, size, 2)
    matrix = basis(n, n_parts, size, inverse=inverse, onesided=onesided)
    others = [index for index in range(len(dims)) if index != axis]
    order = [*others, axis, len(dims)]
    moved = b.add("Transpose", data, perm=order)
    rows = b.reshape(moved, -1, n * n_parts)
    weight = b.constant(matrix.reshape(n * n_parts, -1).astype(b.dtype(data)))
    product = b.add("MatMul", rows, weight)
    shaped = b.reshape(product, *(dims[index] for index in others), *matrix.shape[2:])
    back = [order.index(index) for index in range(len(order))]
    b.add("Transpose", shaped, perm=back, output=b.node.output[0])


def replace_stft(b: Replacement) -> None:
    """Replace STFT with a constant window and step by a convolution.

    Raises:
        UnknownValueError: If window, step or length are computed.
        ModelError: If the matrix is too large.
    """
    data = b.input(0)
    shape = b.shape(data)
    n_parts = shape[2] if len(shape) == 3 else 1
    step, window, given = b.array(1), b.array(2), b.array(3)
    if given is None and window is None:
        raise UnknownValueError
    size = int(given.reshape(-1)[0]) if given is not None else len(window)  # type: ignore[arg-type]
    if step is None or (window is not None and len(window) != size) or shape[1] < size:
        raise UnknownValueError
    b.check_table(size, n_parts, size, 2)
    matrix = basis(size, n_parts, size, inverse=False, onesided=_is_onesided(b, 1))
    if window is not None:
        matrix *= window.astype(np.float64)[:, None, None, None]
    n_bins = matrix.shape[2]
    # (position, part, bin, part of the result) to (bin and part of the result, part, position).
    kernel = matrix.transpose(2, 3, 1, 0).reshape(2 * n_bins, n_parts, size)
    weight = b.constant(np.ascontiguousarray(kernel.astype(b.dtype(data))))
    signal = (
        b.reshape(data, shape[0], 1, shape[1])
        if n_parts == 1
        else b.add("Transpose", data, perm=[0, 2, 1])
    )
    stride = int(step.reshape(-1)[0])
    bins = b.add("Conv", signal, weight, strides=[stride], kernel_shape=[size])
    n_frames = (shape[1] - size) // stride + 1
    pairs = b.reshape(bins, shape[0], n_bins, 2, n_frames)
    b.add("Transpose", pairs, perm=[0, 3, 1, 2], output=b.node.output[0])


def _is_onesided(b: Replacement, default: int) -> bool:
    return bool(b.attribute("onesided", default))


def basis(n: int, n_parts: int, size: int, *, inverse: bool, onesided: bool) -> Array:
    """Return the matrix of a discrete Fourier transform.

    Args:
        n: Number of inputs; those from ``size`` on count as zero, as those that are missing do.
        n_parts: 1 for real inputs, 2 for complex ones.
        size: Length of the transform.
        inverse: True for the inverse transform, with its factor of 1 / ``size``.
        onesided: True for the first half of the outputs, of which the others are conjugates; of an
            inverse transform, for such inputs and real outputs.

    Returns:
        Shape (n, n_parts, outputs, parts of an output), float64.
    """
    is_real = inverse and onesided
    n_outputs = size // 2 + 1 if onesided and not inverse else size
    positions = np.arange(n)[:, None]
    # The remainder first: sines of large angles lose digits.
    phase = positions * np.arange(n_outputs)[None, :] % size * (2 * np.pi / size)
    cos, sin = np.cos(phase), np.sin(phase) * (1 if inverse else -1)
    parts = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], axis=1)
    matrix = parts[:, :n_parts]
    factors = (positions < (size // 2 + 1 if is_real else size)) / (size if inverse else 1)
    if is_real:
        # All inputs but the first and, of an even length, the last one stand for a pair.
        factors = factors * np.where((positions == 0) | (2 * positions == size), 1, 2)
        matrix = matrix[..., :1]
    weighted: Array = matrix * factors[:, :, None, None]
    return weighted
