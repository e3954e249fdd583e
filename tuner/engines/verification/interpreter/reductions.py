"""Sums of products, which take nearly all of the time, by matrix products in float64."""

from typing import Any

import numpy as np

from tuner.engines.verification.dtypes import is_float
from tuner.engines.verification.interpreter import numbers
from tuner.engines.verification.interpreter.numbers import Number

Array = np.ndarray[Any, Any]

# Up to here, float64 holds every integer.
_EXACT = 2.0**53


def contract(a: Array, b: Array, n_spatial: int, extents: tuple[int, ...]) -> Array:
    """Sum the products of two arrays over all dimensions behind the first ``n_spatial``.

    Args:
        a: Array with one dimension for each of the grid, of extent 1 where it is constant.
        b: Likewise.
        n_spatial: Number of dimensions that remain.
        extents: Extents of the grid.

    Returns:
        Sums; dimensions that both arrays are constant in have extent 1.
    """
    repeats = 1
    for dim in range(n_spatial, len(extents)):
        if a.shape[dim] == 1 and b.shape[dim] == 1:
            repeats *= extents[dim]
        elif b.shape[dim] == 1:
            a = a.sum(axis=dim, keepdims=True)
        elif a.shape[dim] == 1:
            b = b.sum(axis=dim, keepdims=True)
    dims = range(n_spatial)
    batch = [d for d in dims if a.shape[d] > 1 and b.shape[d] > 1]
    rows = [d for d in dims if a.shape[d] > 1 and b.shape[d] == 1]
    columns = [d for d in dims if a.shape[d] == 1 and b.shape[d] > 1]
    rest = [d for d in dims if a.shape[d] == 1 and b.shape[d] == 1]
    inner = list(range(n_spatial, len(extents)))
    left = _matrix(a, [batch, rows, inner], rest + columns)
    right = _matrix(b, [batch, inner, columns], rest + rows)
    if left.shape[2] == 1 or left.shape[1] * right.shape[2] == 1:
        # Many tiny products: a matrix product would be called for each.
        product = np.einsum("bmk,bkn->bmn", left, right)
    else:
        product = left @ right
    order = batch + rows + columns
    shaped = product.reshape([max(a.shape[d], b.shape[d]) for d in order] + [1] * len(rest))
    return np.transpose(shaped, np.argsort(order + rest)) * repeats


def _matrix(array: Array, groups: list[list[int]], constant: list[int]) -> Array:
    """Merge dimensions into three; trailing dimensions of extent 1 vanish."""
    order = [dim for group in groups for dim in group]
    moved = np.transpose(array, order + constant)
    sizes = [int(np.prod([array.shape[dim] for dim in group], dtype=np.int64)) for group in groups]
    return moved.reshape(sizes)


def sum_of_products(
    a: Number, b: Number, n_spatial: int, extents: tuple[int, ...], dtypes: tuple[str, str]
) -> tuple[Number, Array]:
    """Sum products; the rounding of the sum itself is left to the caller.

    Args:
        a: First factor, on a grid.
        b: Second factor.
        n_spatial: Number of dimensions of the grid that remain.
        extents: Extents of the grid.
        dtypes: Types of the products and of the sum.

    Returns:
        The sums with the errors of their terms, and the sums of magnitudes.
    """
    product_dtype, dtype = dtypes
    if not is_float(dtype):
        # Products of integers are summed exactly.
        n_terms = int(np.prod(extents[n_spatial:], dtype=np.int64))
        largest = [float(np.abs(x.value.astype(np.float64)).max(initial=0.0)) for x in (a, b)]
        kind = np.float64 if largest[0] * largest[1] * n_terms < _EXACT else np.int64
        value = contract(a.value.astype(kind), b.value.astype(kind), n_spatial, extents)
        magnitude = np.abs(value).astype(np.float64)
        return Number(value.astype(np.int64), None, dtype), magnitude
    left, right = a.value, b.value
    magnitudes = (np.abs(left), np.abs(right))
    value = contract(left, right, n_spatial, extents)
    magnitude = contract(*magnitudes, n_spatial, extents)
    error: Array | None = None
    for x, y in (
        (magnitudes[0], b.error),
        (a.error, magnitudes[1]),
        (a.error, b.error),
    ):
        if x is not None and y is not None:
            part = contract(_filled(x, left), _filled(y, right), n_spatial, extents)
            error = part if error is None else error + part
    if not (a.error is None and b.error is None and are_whole(left) and are_whole(right)):
        rounding = numbers.format_of(product_dtype).unit_roundoff * magnitude
        error = rounding if error is None else error + rounding
    return Number(value, error, dtype), magnitude


def _filled(errors: Array, values: Array) -> Array:
    return np.broadcast_to(errors, np.broadcast_shapes(errors.shape, values.shape))


def are_whole(values: Array) -> bool:
    """Return whether all values are whole numbers."""
    corner = values[(slice(8),) * values.ndim]
    # Most numbers of most arrays are not, and the first of them tell.
    return all(bool(np.all(part == np.rint(part))) for part in (corner, values))
