"""Converters for the interpolations of torch; TVM's importer computes some wrongly.

It takes the nearest neighbour from the middle of a pixel, drops antialiasing, and rounds scales.
Torch itself ignores scales in some operators where the length stays the same, or doubles.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax

from tuner.engines.relax.frontend.converters import resize_tables
from tuner.engines.relax.frontend.converters.resize import resize
from tuner.engines.relax.frontend.converters.resize_tables import Array, Axis, Interpolation

_NEAREST = Interpolation("nearest", "asymmetric", "floor")
_NEAREST_EXACT = Interpolation("nearest", "half_pixel", "round_prefer_ceil")
_LINEAR = Interpolation("linear", "half_pixel")
_CUBIC = Interpolation("cubic", "half_pixel")
_LINEAR_ANTIALIAS = Interpolation("linear", "half_pixel", exclude_outside=True, antialias=True)
_CUBIC_ANTIALIAS = Interpolation(
    "cubic", "half_pixel", cubic_coeff_a=-0.5, exclude_outside=True, antialias=True
)
_KINDS = {
    **{f"upsample_nearest{n}d": _NEAREST for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d": _NEAREST_EXACT for n in (1, 2, 3)},
    **dict.fromkeys(("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"), _LINEAR),
    "upsample_bicubic2d": _CUBIC,
    "_upsample_bilinear2d_aa": _LINEAR_ANTIALIAS,
    "_upsample_bicubic2d_aa": _CUBIC_ANTIALIAS,
}


def _convert(node: Any, importer: Any, how: Interpolation) -> relax.Expr:
    given = {
        argument.name: node.args[index]
        if index < len(node.args)
        else node.kwargs.get(argument.name)
        for index, argument in enumerate(node.target._schema.arguments)
    }
    data = importer.env[given["input" if "input" in given else "self"]]
    align = bool(given.get("align_corners"))
    operator = node.target._schema.name.partition("::")[2]
    axes = {}
    for number, scale in enumerate(_scales_of(given, len(data.ty.shape) - 2), start=2):
        n_in, n_out = int(data.ty.shape[number]), int(node.meta["val"].shape[number])
        is_ignored = align or _ignores_scale(operator, n_in, n_out, how)
        axes[number] = _axis(n_in, n_out, None if is_ignored else scale, how, align)
    if align and not how.antialias:
        how = replace(how, coordinates="align_corners")
    builder = importer.block_builder
    if how.mode == "nearest":
        indices = {number: _nearest(axis, how) for number, axis in axes.items()}
        # Quotients of floats may be rounded to the next pixel in one of the formulas.
        if any((indices[n] != resize_tables.nearest(axes[n], how)).any() for n in axes):
            for number, positions in indices.items():
                data = builder.emit(relax.op.take(data, relax.const(positions), axis=number))
            return data
    return builder.emit(resize(builder, data, axes, how))


def _scales_of(given: dict[str, Any], n_axes: int) -> list[float | None]:
    """Return the scale of each axis: operators have a name for each, or one list of all."""
    scales = [value for name, value in given.items() if name.startswith("scale")]
    if isinstance(scales[0], list | tuple):
        return [*scales[0]]
    return scales if len(scales) == n_axes else [None] * n_axes


def _axis(n_in: int, n_out: int, scale: float | None, how: Interpolation, align: bool) -> Axis:
    ratio = n_out / n_in if scale is None else float(scale)
    if align and how.antialias:
        if 1 in (n_in, n_out):
            raise NotImplementedError("antialiasing of aligned corners to one element")
        # The corners decide on the scale, and not on the positions.
        ratio = (n_out - 1) / (n_in - 1)
    return Axis(n_in, n_out, ratio)


def _ignores_scale(operator: str, n_in: int, n_out: int, how: Interpolation) -> bool:
    """Return whether torch computes an axis as if it had been given no scale."""
    if operator == "upsample_nearest2d":
        return n_out in (n_in, 2 * n_in)
    return n_out == n_in and (how.mode == "linear" or how.antialias)


def _nearest(axis: Axis, how: Interpolation) -> Array:
    """Return the index of the input that each output copies, computed in float32 as torch does."""
    i = np.arange(axis.out_size, dtype=np.float32)
    offset = np.float32(0.5 if how.coordinates == "half_pixel" else 0.0)
    scaled = (i + offset) * np.float32(1.0 / axis.scale)
    indices: Array = np.minimum(np.floor(scaled), axis.in_size - 1).astype(np.int64)
    return indices


def _converter(how: Interpolation) -> Callable[[Any, Any], relax.Expr]:
    return lambda node, importer: _convert(node, importer, how)


#: Converters by name of the operator.
CONVERTERS: dict[str, Callable[[Any, Any], relax.Expr]] = {
    f"{name}.{overload}": _converter(how)
    for name, how in _KINDS.items()
    for overload in ("default", "vec")
}
