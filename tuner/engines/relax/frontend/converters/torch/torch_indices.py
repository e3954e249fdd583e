"""Converters for indices of torch, which count from the end where they are negative.

TVM's importer passes them on to operators that read outside of the tensor then.
"""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tvm import relax


def _convert_select(node: Any, importer: Any) -> relax.Expr:
    source, axis, index = node.args
    size = source.meta["val"].shape[axis]
    index = relax.const(index + size if index < 0 else index, "int64")
    return importer.block_builder.emit(relax.op.take(importer.env[source], index, axis))


def _convert_index(node: Any, importer: Any) -> relax.Expr:
    source, indices, *others = node.args
    emit, shape = importer.block_builder.emit, source.meta["val"].shape
    given = {axis: index for axis, index in enumerate(indices) if index is not None}
    if 1 < len(given) < len(shape) and not any(map(_is_mask, given.values())):
        positions, _ = _positions(shape, given, importer)
        return emit(relax.op.index_tensor(importer.env[source], relax.Tuple(positions)))
    counted = [
        None if index is None else _wrap(importer.env[index], size)
        for index, size in zip(indices, shape, strict=False)
    ]
    return importer._index_tensor(
        SimpleNamespace(target=node.target, args=(source, counted, *others), kwargs=node.kwargs)
    )


def _convert_index_put(node: Any, importer: Any) -> relax.Expr:
    """Convert a write at indices; TVM expects values of the shape of all that is written."""
    source, indices, values, *accumulate = node.args
    emit = importer.block_builder.emit
    given = {axis: index for axis, index in enumerate(indices) if index is not None}
    if any(map(_is_mask, given.values())):
        raise NotImplementedError("values written under a mask")
    shape = source.meta["val"].shape
    positions, written = _positions(shape, given, importer)
    if 0 in written:
        return importer.env[source]
    data = emit(relax.op.broadcast_to(importer.env[values], written or [1]))
    is_sum = accumulate[0] if accumulate else node.kwargs.get("accumulate", False)
    n_axes, n_free = len(given), len(shape) - len(given)
    block = written[: len(written) - n_free]
    if not is_sum or not block or [*given] != [*range(n_axes)]:
        return emit(relax.op.index_put(importer.env[source], relax.Tuple(positions), data, is_sum))
    # Whole rows are added faster than their elements.
    places = []
    for axis, index in given.items():
        place = emit(_wrap(importer.env[index], shape[axis]))
        if str(place.ty.dtype) != "int64":
            place = emit(relax.op.astype(place, "int64"))
        places.append(emit(relax.op.broadcast_to(place, block)))
    rows = emit(relax.op.stack(places, -1))
    return emit(relax.op.scatter_nd(importer.env[source], rows, data, "add"))


def _positions(
    shape: Sequence[int], given: Mapping[int, Any], importer: Any
) -> tuple[list[relax.Expr], list[int]]:
    """Return the place of each element along each axis, to be broadcast, and the elements' shape.

    The axes of the indices lie where these are, or in front if an axis without one is between them.
    """
    emit = importer.block_builder.emit
    block = torch.broadcast_shapes(*(index.meta["val"].shape for index in given.values()))
    free = [axis for axis in range(len(shape)) if axis not in given]
    are_adjacent = max(given) - min(given) == len(given) - 1
    n_before = min(given) if are_adjacent else 0
    sizes = [shape[axis] for axis in free]
    positions = []
    for axis, size in enumerate(shape):
        if axis in given:
            index = emit(_wrap(importer.env[given[axis]], size))
            inner = [*given[axis].meta["val"].shape, *[1] * (len(free) - n_before)] or [1]
            positions.append(emit(relax.op.reshape(index, inner)))
        else:
            number = free.index(axis)
            n_inner = len(free) - number - 1 + (len(block) if number < n_before else 0)
            positions.append(relax.const(np.arange(size).reshape(-1, *[1] * n_inner), "int64"))
    return positions, [*sizes[:n_before], *block, *sizes[n_before:]]


def _is_mask(index: Any) -> bool:
    return index.meta["val"].dtype in (torch.bool, torch.uint8)


def _convert_scatter_reduce(node: Any, importer: Any) -> relax.Expr:
    """Convert a reduction into the elements at indices, which need not count themselves."""
    source, axis, index, values, how = node.args
    if index.meta["val"].shape != values.meta["val"].shape or how not in _REDUCTIONS:
        raise NotImplementedError(f"scatter_reduce of values of another shape, or by {how}")
    emit, data, places = importer.block_builder.emit, importer.env[source], importer.env[index]
    if not node.kwargs.get("include_self", True):
        dtype = source.meta["val"].dtype
        ends = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        start = {"sum": 0, "prod": 1, "amax": ends.min, "amin": ends.max}[how]
        if dtype.is_floating_point and how in ("amax", "amin"):
            start *= float("inf")
        name = str(data.ty.dtype)
        starts = relax.op.full([*values.meta["val"].shape], relax.const(start, name), name)
        data = emit(relax.op.scatter_elements(data, places, emit(starts), axis))
    values = importer.env[values]
    return emit(relax.op.scatter_elements(data, places, values, axis, _REDUCTIONS[how]))


def _wrap(index: relax.Expr, size: int) -> relax.Expr:
    dtype = str(index.ty.dtype)
    if dtype == "bool":
        return index
    is_negative = relax.op.less(index, relax.const(0, dtype))
    return relax.op.where(is_negative, index + relax.const(size, dtype), index)


# Reductions of scatter_elements by the name that torch has for them.
_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}

#: Converters by name of the operator.
CONVERTERS: dict[str, Callable[[Any, Any], relax.Expr]] = {
    "index.Tensor": _convert_index,
    "index_put.default": _convert_index_put,
    "scatter_reduce.two": _convert_scatter_reduce,
    "select.int": _convert_select,
}
