"""Converters of operators that sample pictures: GridSample and RoiAlign.

RoiAlign is TVM's operator for averages, and a kernel of its own for maxima.
"""

from typing import Any

import numpy as np
from ml_dtypes import finfo
from tvm import relax, te, tirx
from tvm.relax.frontend.onnx import onnx_frontend

from tuner.engines.relax.frontend.converters.operands import as_text

# Version from which the centres of pixels lie at halves unless the attribute says otherwise.
_HALVES = 16
# Largest coordinates of a grid that are told apart, in halves of an image: their places are int32,
# and no pixel is near them.
_FARTHEST = 32.0


def convert_grid_sample(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
    """Convert GridSample; TVM's kernel would give the data the type of the grid.

    As in ONNX Runtime, NaN and what is beyond int64 are the first pixel.
    """
    data, grid = inputs
    dtype = str(data.ty.dtype)
    if grid.ty.dtype != data.ty.dtype:
        grid = builder.normalize(relax.op.astype(grid, dtype))
    # The last axis is the first of a place.
    sizes = [int(size) - attrs.get("align_corners", 0) for size in data.ty.shape][:1:-1]
    largest = finfo(dtype).max  # type: ignore[no-untyped-call]
    limits = np.minimum(2.0**63 / np.maximum(sizes, 1), largest).astype(dtype)
    is_place = builder.emit(relax.op.less(builder.emit(relax.op.abs(grid)), relax.const(limits)))
    grid = builder.emit(relax.op.where(is_place, grid, relax.const(-1, dtype)))
    if as_text(attrs.get("padding_mode", "zeros")) == "reflection":
        # Reflections repeat with a period of two images.
        ahead = relax.op.multiply(
            relax.op.add(grid, relax.const(1, dtype)), relax.const(0.25, dtype)
        )
        periods = builder.emit(relax.op.floor(builder.normalize(ahead)))
        back = relax.op.multiply(periods, relax.const(4, dtype))
        grid = builder.emit(relax.op.subtract(grid, builder.normalize(back)))
        mirrored = builder.emit(relax.op.subtract(relax.const(2, dtype), grid))
        grid = builder.emit(relax.op.minimum(grid, mirrored))
        data, grid = _with_reflected_pixels(builder, data, grid, attrs)
        attrs = {**attrs, "padding_mode": "border"}
    grid = builder.emit(relax.op.clip(grid, -_FARTHEST, _FARTHEST))
    convert = onnx_frontend.GridSample.get_converter(opset)
    return convert(builder, [data, grid], attrs, [{}, {}])


def _with_reflected_pixels(
    builder: Any, data: relax.Expr, grid: relax.Expr, attrs: dict[str, Any]
) -> tuple[relax.Expr, relax.Expr]:
    """Return a picture with the pixels that cubic samples of its edges read, and the places in it.

    TVM would reflect each of 16 pixels in the expression of a sample, which takes LLVM and the
    lowering seconds. Other samples read no pixel outside.
    """
    if as_text(attrs.get("mode", "linear")) not in ("bicubic", "cubic"):
        return data, grid
    dtype, is_aligned = str(data.ty.dtype), int(attrs.get("align_corners", 0))
    sizes = np.array([int(size) for size in data.ty.shape][2:])
    for axis, size in enumerate(sizes, 2):
        places = np.pad(np.arange(size), 2, mode="reflect" if is_aligned else "symmetric")
        data = builder.emit(relax.op.take(data, relax.const(places, "int64"), axis, "clip"))
    scale = (sizes - is_aligned) / (sizes + 4 - is_aligned)
    scaled = relax.op.multiply(grid, relax.const(scale[::-1].astype(dtype), dtype))
    return data, builder.emit(scaled)


def convert_roi_align(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
    """Convert RoiAlign.

    TVM's importer shifts regions before it scales them, and takes the maximum of samples instead
    of the maximum of the weighted pixels around them.
    """
    data, regions, batches = inputs
    dtype = str(regions.ty.dtype)
    default = "half_pixel" if opset >= _HALVES else "output_half_pixel"
    coordinates = as_text(attrs.get("coordinate_transformation_mode", default))
    mode = as_text(attrs.get("mode", "avg"))
    if mode not in ("avg", "max") or coordinates not in ("half_pixel", "output_half_pixel"):
        raise NotImplementedError(f"RoiAlign with mode {mode} and coordinates {coordinates}")
    is_aligned = coordinates == "half_pixel"
    scale = relax.const(attrs.get("spatial_scale", 1.0), dtype)
    scaled = builder.emit(relax.op.multiply(regions, scale))
    if is_aligned:
        scaled = builder.emit(relax.op.subtract(scaled, relax.const(0.5, dtype)))
    size = (int(attrs.get("output_height", 1)), int(attrs.get("output_width", 1)))
    n_samples = int(attrs.get("sampling_ratio", 0))
    align = _align_largest if mode == "max" else _align_average
    aligned = align(builder, (data, scaled, batches), size, n_samples, is_aligned)
    if n_samples > 0 or not is_aligned:
        return aligned
    return _without_empty(builder, builder.emit(aligned), scaled)


def _align_average(
    builder: Any, inputs: Any, size: tuple[int, int], n_samples: int, is_aligned: bool
) -> relax.Expr:
    data, regions, batches = inputs
    column = builder.emit(relax.op.expand_dims(batches, 1))
    column = builder.emit(relax.op.astype(column, str(regions.ty.dtype)))
    return relax.op.vision.roi_align(
        data,
        builder.emit(relax.op.concat([column, regions], axis=1)),
        pooled_size=size,
        spatial_scale=1.0,
        sample_ratio=n_samples,
        aligned=is_aligned,
        layout="NCHW",
        mode="avg",
    )


def _align_largest(
    builder: Any, inputs: Any, size: tuple[int, int], n_samples: int, is_aligned: bool
) -> relax.Expr:
    return builder.emit_te(
        _largest, *inputs, size, n_samples, is_aligned, primfunc_name_hint="roi_align"
    )


def _without_empty(builder: Any, aligned: relax.Expr, regions: relax.Expr) -> relax.Expr:
    """Put zeros where a region is empty: its samples are none, and nothing writes its outputs."""
    start, end = (
        builder.emit(relax.op.strided_slice(regions, axes=[1], begin=[n], end=[n + 2]))
        for n in (0, 2)
    )
    extent = builder.emit(relax.op.min(builder.emit(relax.op.subtract(end, start)), axis=[1]))
    zero = relax.const(0, str(regions.ty.dtype))
    is_full = builder.emit(relax.op.greater(extent, zero))
    is_full = builder.emit(relax.op.expand_dims(is_full, [1, 2, 3]))
    return relax.op.where(is_full, aligned, relax.const(0, str(aligned.ty.dtype)))


def _largest(
    data: te.Tensor,
    regions: te.Tensor,
    batches: te.Tensor,
    size: tuple[int, int],
    n_samples: int,
    is_aligned: bool,
) -> te.Tensor:
    """Return the largest weighted pixel around any sample of each part of each region."""
    limits = data.shape[2:]
    dtype = regions.dtype

    def compute(region: Any, channel: Any, *part: Any) -> Any:
        samples, positions = [], []
        for axis, n_parts in enumerate(size):
            start, end = regions[region, 1 - axis], regions[region, 3 - axis]
            length = end - start if is_aligned else te.max(end - start, tirx.const(1.0, dtype))
            step = length / tirx.const(n_parts, dtype)
            count = te.ceil(step).astype("int32") if n_samples <= 0 else tirx.const(n_samples)
            sample = te.reduce_axis((0, count), f"sample{axis}")
            middle = (tirx.Cast(dtype, sample) + tirx.const(0.5, dtype)) / tirx.Cast(dtype, count)
            samples.append(sample)
            positions.append(start + (tirx.Cast(dtype, part[axis]) + middle) * step)
        batch = batches[region].astype("int32")
        rows, columns = (_neighbours(x, n, dtype) for x, n in zip(positions, limits, strict=True))
        values = [
            data[batch, channel, row, column] * (by_row * by_column).astype(data.dtype)
            for row, by_row in rows
            for column, by_column in columns
        ]
        best = values[0]
        for value in values[1:]:
            best = te.max(best, value)
        pairs = zip(positions, limits, strict=True)
        outside = tirx.any(
            *(test for x, n in pairs for test in (x < -1.0, x > tirx.Cast(dtype, n)))
        )
        inside = tirx.if_then_else(outside, tirx.const(0.0, data.dtype), best)
        return te.max(inside, axis=samples)

    return te.compute((regions.shape[0], data.shape[1], *size), compute, "roi_align")


def _neighbours(position: Any, limit: Any, dtype: str) -> list[tuple[Any, Any]]:
    """Return the two pixels around a position along an axis, and their weights."""
    last = tirx.Cast("int32", limit) - 1
    clipped = te.min(te.max(position, tirx.const(0.0, dtype)), tirx.Cast(dtype, last))
    first = te.floor(clipped).astype("int32")
    share = clipped - tirx.Cast(dtype, first)
    return [(first, tirx.const(1.0, dtype) - share), (te.min(first + 1, last), share)]
