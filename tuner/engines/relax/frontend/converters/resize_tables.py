"""Positions and weights of the inputs of each output of a Resize, after ONNX's specification."""

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Axis:
    """One resized axis.

    Attributes:
        in_size: Length of the input.
        out_size: Length of the output.
        scale: Exact scale, which differs from the ratio of the lengths where that was rounded.
        roi: Start and end of the cropped region, from 0 to 1.
    """

    in_size: int
    out_size: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class Interpolation:
    """Attributes of a Resize, named as in ONNX."""

    mode: str
    coordinates: str
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


def coordinates(axis: Axis, mode: str) -> Array:  # noqa: PLR0911  one return for each mode
    """Return the position in the input of each output, float32 as ONNX Runtime computes it."""
    i = np.arange(axis.out_size, dtype=np.float32)
    scale, n_in, n_out = np.float32(axis.scale), axis.in_size, axis.out_size
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and n_out > 1):
        return (i + np.float32(0.5)) / scale - np.float32(0.5)
    if mode == "half_pixel_symmetric":
        offset = n_in / 2 * (1 - n_out / (axis.scale * n_in))
        return np.float32(offset) + (i + np.float32(0.5)) / scale - np.float32(0.5)
    if mode == "pytorch_half_pixel":
        return np.zeros(1, np.float32)
    if mode == "align_corners":
        return i * np.float32((n_in - 1) / max(1, n_out - 1))
    if mode == "asymmetric":
        return i / scale
    if mode == "tf_half_pixel_for_nn":
        return (i + np.float32(0.5)) / scale
    if mode != "tf_crop_and_resize":
        raise NotImplementedError(f"coordinate transformation {mode}")
    start, end = axis.roi
    if n_out == 1:
        return np.array([(start + end) / 2 * (n_in - 1)], np.float32)
    return np.float32(start * (n_in - 1)) + i * np.float32((end - start) * (n_in - 1) / (n_out - 1))


def nearest(axis: Axis, how: Interpolation) -> Array:
    """Return the index of the input that each output copies."""
    x = coordinates(axis, how.coordinates)
    # Opset 10 rounds up to shrink and down to enlarge, as ONNX Runtime and the standard's examples.
    outwards = np.ceil if axis.scale < 1 else np.floor
    rounded = {
        "outwards": outwards(x),
        "round_prefer_floor": np.ceil(x - np.float32(0.5)),
        "round_prefer_ceil": np.floor(x + np.float32(0.5)),
        "floor": np.floor(x),
        "ceil": np.ceil(x),
    }[how.nearest_mode]
    return np.clip(rounded, 0, axis.in_size - 1).astype(np.int64)


def taps(axis: Axis, how: Interpolation) -> tuple[Array, Array]:
    """Return the inputs of each output, and their weights.

    Returns:
        Indices (outputs, taps), int64, and weights (outputs, taps), float32.
    """
    x = coordinates(axis, how.coordinates).astype(np.float64)
    # A kernel that shrinks averages over as many inputs as one output covers.
    shrink = min(1.0, axis.scale) if how.antialias else 1.0
    radius = 1 if how.mode == "linear" else 2
    first = int(np.floor(-radius / shrink)) + 1
    steps = np.arange(first, 2 - first)
    base = np.floor(x)
    distance = np.abs((steps[None, :] - (x - base)[:, None]) * shrink)
    if how.mode == "linear":
        weights = np.clip(1 - distance, 0, None)
    else:
        weights = _cubic(distance, how.cubic_coeff_a)
    indices = base[:, None].astype(np.int64) + steps[None, :]
    if how.exclude_outside:
        weights = np.where((indices < 0) | (indices >= axis.in_size), 0.0, weights)
    weights = weights / weights.sum(axis=1, keepdims=True)
    used = np.flatnonzero(np.abs(weights).max(axis=0) > 0)
    part = slice(used[0], used[-1] + 1)
    indices = np.clip(indices, 0, axis.in_size - 1)[:, part]
    weights = weights[:, part].astype(np.float32)
    if how.mode == "linear":
        # An infinite element of weight 0 would be NaN: the closest one comes again instead.
        largest, is_unused = weights.argmax(axis=1)[:, None], weights == 0
        indices = np.where(is_unused, np.take_along_axis(indices, largest, 1), indices)
        share = weights.max(axis=1) / (1 + is_unused.sum(axis=1))
        np.put_along_axis(weights, largest, share[:, None], 1)
        weights = np.where(is_unused, share[:, None], weights).astype(np.float32)
    return indices, weights


def _cubic(distance: Array, a: float) -> Array:
    """Return the cubic convolution kernel (Keys, 1981)."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
