"""Definition of softmax and its logarithm along the last axis, for CPUs.

LLVM makes no vectors of a maximum over one axis, because NaN would tell. Maxima of lanes side by
side are loops over vectors, and only those of the lanes are taken one by one.
"""

import math
from typing import Any

from tvm import te, tirx

_LANES, _FEWER_LANES = 16, 4


def softmax(x: te.Tensor) -> te.Tensor:
    """Define a softmax along the last axis; rows are multiplied with the inverse of their sums."""
    exponentials, sums, _ = _parts(x)
    one = tirx.const(1, x.dtype)
    factors = te.compute(sums.shape, lambda *row: one / sums(*row), name="factors")
    return te.compute(
        x.shape, lambda *i: exponentials(*i) * factors(*_row(i)), name="softmax", tag="softmax"
    )


def masked_softmax(
    x: te.Tensor, fill: float, *, replaces_nan: bool, has_lanes: bool = True
) -> te.Tensor:
    """Define a softmax whose rows hold another number where all scores are minus infinity.

    Args:
        x: Scores.
        fill: Number.
        replaces_nan: True if rows that are not numbers hold it, too: where the sum is NaN, or 0
            because all scores are minus infinity.
        has_lanes: False for maxima of whole rows, as GPUs take them.
    """
    exponentials, sums, maxima = _parts(x, has_lanes=has_lanes)
    zero, one = tirx.const(0, x.dtype), tirx.const(1, x.dtype)
    factors = te.compute(sums.shape, lambda *row: one / sums(*row), name="factors")

    def is_masked(*row: Any) -> Any:
        if replaces_nan:
            return tirx.any(tirx.isnan(sums(*row)), sums(*row) == zero)
        return maxima(*row) == tirx.const(-math.inf, x.dtype)

    return te.compute(
        x.shape,
        lambda *i: tirx.Select(
            is_masked(*_row(i)), tirx.const(fill, x.dtype), exponentials(*i) * factors(*_row(i))
        ),
        name="softmax",
    )


def log_softmax(x: te.Tensor) -> te.Tensor:
    """Define the logarithm of a softmax along the last axis."""
    _, sums, maxima = _parts(x)
    logarithms = te.compute(sums.shape, lambda *row: tirx.log(sums(*row)), name="logarithms")
    return te.compute(
        x.shape, lambda *i: x(*i) - maxima(*_row(i)) - logarithms(*_row(i)), name="log_softmax"
    )


def _parts(x: te.Tensor, *, has_lanes: bool = True) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """Return the exponentials of what is left of each row's maximum, their sums, and the maxima."""
    maxima = _maxima(x) if has_lanes else _maxima_of(x, 1, "maxima")
    exponentials = te.compute(
        x.shape, lambda *i: tirx.exp(x(*i) - maxima(*_row(i))), name="exponentials"
    )
    k = te.reduce_axis((0, x.shape[-1]), name="k")
    rows = x.shape[:-1] or [1]
    sums = te.compute(
        rows, lambda *row: te.sum(exponentials(*row[: len(x.shape) - 1], k), axis=k), name="sums"
    )
    return exponentials, sums, maxima


def _maxima(x: te.Tensor) -> te.Tensor:
    """Return the maximum of each row."""
    n = int(x.shape[-1])
    outer = len(x.shape) - 1
    if n < 2 * _LANES:
        return _maxima_of(x, 1, "maxima")
    lanes = _maxima_of(x, _LANES, "maxima_of_lanes")
    if n % _LANES:
        # The last lanes once more: maxima do not mind that the loop has seen some.
        first = lanes
        lanes = te.compute(
            first.shape,
            lambda *i: tirx.max(first(*i), x(*i[:outer], n - _LANES + i[outer])),
            name="maxima_with_rest",
        )
    return _maxima_of(_maxima_of(lanes, _FEWER_LANES, "maxima_of_fewer_lanes"), 1, "maxima")


def _maxima_of(x: te.Tensor, n_lanes: int, name: str) -> te.Tensor:
    """Return the maxima of every ``n_lanes``-th element of a row; one lane has no axis."""
    outer = len(x.shape) - 1
    k = te.reduce_axis((0, int(x.shape[-1]) // n_lanes), name="k")
    if n_lanes == 1:
        rows = x.shape[:-1] or [1]
        return te.compute(rows, lambda *row: te.max(x(*row[:outer], k), axis=k), name=name)
    return te.compute(
        (*x.shape[:-1], n_lanes),
        lambda *i: te.max(x(*i[:outer], k * n_lanes + i[outer]), axis=k),
        name=name,
    )


def _row(index: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the index of a row; a vector is one row."""
    return index[:-1] or (0,)
