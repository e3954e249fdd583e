"""Converter of Resize: TVM's operator where it is exact, else a sum of taps along each axis."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te
from tvm.relax.frontend.onnx import onnx_frontend

from tuner.engines.relax.frontend.converters import resize_tables
from tuner.engines.relax.frontend.converters.operands import as_text, constant_array
from tuner.engines.relax.frontend.converters.resize_tables import Axis, Interpolation

# Version of the standard in which Upsample became Resize.
_FIRST_VERSION = 10
_EXACT_VERSION = 18
# Ranks of the tensors that TVM resizes: images by any mode, lines and volumes by a linear one.
_IMAGE, _LINES_AND_VOLUMES = 4, (3, 5)
_EXACT_COORDINATES = {"half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"}


def convert_resize(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
    """Convert Resize with constant sizes or scales, in any mode and along any axes."""
    data = inputs[0] if isinstance(inputs[0], relax.Var) else builder.emit(inputs[0])
    given = [*inputs, None, None, None]
    roi, scales, sizes = (None, given[1], None) if opset < 11 else given[1:4]
    how = Interpolation(
        mode=as_text(attrs.get("mode", "nearest")),
        # Before opset 11 all modes were asymmetric.
        coordinates=as_text(
            attrs.get(
                "coordinate_transformation_mode", "asymmetric" if opset < 11 else "half_pixel"
            )
        ),
        nearest_mode=as_text(
            attrs.get("nearest_mode", "outwards" if opset < 11 else "round_prefer_floor")
        ),
        cubic_coeff_a=float(attrs.get("cubic_coeff_a", -0.75)),
        exclude_outside=bool(attrs.get("exclude_outside", 0)),
        antialias=bool(attrs.get("antialias", 0)),
    )
    shape = [int(dim) for dim in data.ty.shape]
    numbers = [int(axis) % len(shape) for axis in attrs.get("axes", range(len(shape)))]
    policy = as_text(attrs.get("keep_aspect_ratio_policy", "stretch"))
    axes = _axes([shape[n] for n in numbers], constant_array(scales), constant_array(sizes), policy)
    regions = constant_array(roi)
    if how.coordinates == "tf_crop_and_resize" and regions is not None and regions.size:
        pairs = regions.reshape(2, -1).T
        axes = [
            Axis(axis.in_size, axis.out_size, axis.scale, (float(start), float(end)))
            for axis, (start, end) in zip(axes, pairs, strict=True)
        ]
    by_number = dict(zip(numbers, axes, strict=True))
    return resize(builder, data, by_number, how, float(attrs.get("extrapolation_value", 0.0)))


def resize(
    builder: Any, data: relax.Expr, axes: dict[int, Axis], how: Interpolation, outside: float = 0.0
) -> relax.Expr:
    """Resize some axes of a tensor.

    Args:
        builder: Builder of the block.
        data: The tensor.
        axes: Resized axes by their number.
        how: Interpolation.
        outside: Value of outputs beyond the inputs, where the coordinates are a crop.
    """
    if _is_exact(axes, len(data.ty.shape), how):
        return _by_operator(builder, data, axes, how)
    return _by_tables(builder, data, axes, how, outside)


def convert_upsample(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
    """Convert Upsample, whose scales are an attribute before version 9, as the first Resize."""
    scales = inputs[1] if opset >= 9 else relax.const(np.array(attrs["scales"], "float32"))
    attrs = {"mode": attrs.get("mode", "nearest")}
    return convert_resize(builder, [inputs[0], scales], attrs, _FIRST_VERSION)


def _axes(lengths: Sequence[int], scales: Any, sizes: Any, policy: str) -> list[Axis]:
    if sizes is None or not sizes.size:
        if scales is None:
            raise NotImplementedError("Resize without sizes and scales")
        return [
            Axis(n, int(np.floor(np.float32(n) * np.float32(scale))), float(scale))
            for n, scale in zip(lengths, scales, strict=True)
        ]
    ratios = [int(size) / n for size, n in zip(sizes, lengths, strict=True)]
    if policy == "stretch":
        return [
            Axis(n, int(size), ratio) for n, size, ratio in zip(lengths, sizes, ratios, strict=True)
        ]
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return [Axis(n, int(np.floor(n * ratio + 0.5)), ratio) for n in lengths]


def _is_exact(axes: dict[int, Axis], rank: int, how: Interpolation) -> bool:
    """Return whether TVM's operator, which layouts pass through, computes the same."""
    moved = {n for n, axis in axes.items() if axis.in_size != axis.out_size or axis.scale != 1}
    rounded = any(abs(axis.scale - axis.out_size / axis.in_size) > 1e-6 for axis in axes.values())
    return (
        (rank == _IMAGE or (rank in _LINES_AND_VOLUMES and how.mode == "linear"))
        # Corners of a single row are not apart.
        and not (rank < _IMAGE and how.coordinates == "align_corners")
        and moved <= set(range(2, rank))
        and not rounded
        and not how.antialias
        and not how.exclude_outside
        and how.coordinates in _EXACT_COORDINATES
        and all(axis.out_size > 1 for axis in axes.values() if axis.in_size > 1)
        and not (how.nearest_mode == "outwards" and any(axis.scale < 1 for axis in axes.values()))
    )


def _by_operator(
    builder: Any, data: relax.Expr, axes: dict[int, Axis], how: Interpolation
) -> relax.Expr:
    """Resize by TVM's operator; a line is an image of one row."""
    shape = [int(dim) for dim in data.ty.shape]
    sizes = [axes[n].out_size if n in axes else size for n, size in enumerate(shape)]
    # It is exact where lengths grow, and positions are rounded down then.
    nearest_mode = "floor" if how.nearest_mode == "outwards" else how.nearest_mode
    attrs = {
        "mode": how.mode.encode(),
        "coordinate_transformation_mode": how.coordinates.encode(),
        "nearest_mode": nearest_mode.encode(),
        "cubic_coeff_a": how.cubic_coeff_a,
    }
    is_line = len(shape) < _IMAGE
    if is_line:
        data = builder.emit(relax.op.expand_dims(data, 2))
        sizes.insert(2, 1)
    inputs = onnx_frontend.onnx_input()
    inputs.extend([data, None, None, relax.const(np.array(sizes, "int64"))])
    resized = onnx_frontend.Resize.get_converter(_EXACT_VERSION)(builder, inputs, attrs, [{}, {}])
    return relax.op.squeeze(builder.emit(resized), 2) if is_line else resized


def _by_tables(
    builder: Any, data: relax.Expr, axes: dict[int, Axis], how: Interpolation, outside: float
) -> relax.Expr:
    """Resize axis by axis with tables of indices and weights."""
    value = data
    for number, axis in axes.items():
        identity = axis.scale == 1 and axis.in_size == axis.out_size
        if identity and how.coordinates != "tf_crop_and_resize":
            continue
        if how.mode == "nearest":
            indices = relax.const(resize_tables.nearest(axis, how))
            value = builder.emit(relax.op.take(value, indices, axis=number))
        else:
            value = _interpolate(builder, value, number, resize_tables.taps(axis, how))
    if how.coordinates != "tf_crop_and_resize":
        return value
    rank = len(data.ty.shape)
    inside = np.ones([1] * rank, bool)
    for number, axis in axes.items():
        x = resize_tables.coordinates(axis, how.coordinates)
        side = [-1 if n == number else 1 for n in range(rank)]
        inside = inside & ((x >= 0) & (x <= axis.in_size - 1)).reshape(side)
    fill = relax.const(outside, str(data.ty.dtype))
    return relax.op.where(relax.const(inside), value, fill)


def _interpolate(builder: Any, data: relax.Expr, axis: int, tables: tuple[Any, Any]) -> relax.Expr:
    indices, weights = tables
    dtype = str(data.ty.dtype)
    if dtype not in ("float32", "float64"):
        # Integers cannot hold weights below 1, and halves lose digits with each tap.
        wide = _interpolate(builder, builder.emit(relax.op.astype(data, "float32")), axis, tables)
        if not dtype.startswith(("float", "bfloat")):
            wide = builder.emit(relax.op.round(wide))
        return builder.emit(relax.op.astype(wide, dtype))

    def compute(x: te.Tensor, positions: te.Tensor, factors: te.Tensor) -> te.Tensor:
        tap = te.reduce_axis((0, indices.shape[1]), "tap")
        shape = [*x.shape[:axis], indices.shape[0], *x.shape[axis + 1 :]]

        def at(*i: Any) -> Any:
            position = positions[i[axis], tap]
            value = x(*i[:axis], position, *i[axis + 1 :])
            return te.sum(value * factors[i[axis], tap], axis=tap)

        return te.compute(shape, at, "resize")

    return builder.emit_te(
        compute,
        data,
        relax.const(indices),
        relax.const(weights.astype(dtype)),
        primfunc_name_hint="resize",
    )
