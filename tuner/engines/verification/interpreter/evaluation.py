"""Evaluation of expressions at all points of a grid at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from tuner.engines.verification.dtypes import is_float
from tuner.engines.verification.interpreter import numbers
from tuner.engines.verification.interpreter.numbers import UNKNOWN, Number
from tuner.engines.verification.interpreter.program import (
    Buffer,
    Call,
    Constant,
    Expression,
    Load,
    Variable,
)
from tuner.errors import WorkError

# Up to here, float64 holds every integer.
_EXACT = 2.0**53

Array = np.ndarray[Any, Any]

Memory = dict[Buffer, Number]
# Constant part, and coefficient of each variable.
_Affine = tuple[int, dict[Variable, int]]


@dataclass(frozen=True)
class Span:
    """Values of a variable on a grid: consecutive ones along one dimension."""

    dimension: int
    start: int
    stop: int

    @property
    def extent(self) -> int:
        """Number of values."""
        return self.stop - self.start


class Grid:
    """A box of points, at which expressions are evaluated.

    Results have one dimension for each of the grid, of extent 1 where they do not depend on it.

    Args:
        spans: Variables along a dimension.
        memory: Values of buffers; others are undefined.
        bound: Values of all other variables.
    """

    def __init__(
        self,
        n_dimensions: int,
        spans: Mapping[Variable, Span],
        memory: Memory,
        bound: Mapping[Variable, Number] | None = None,
    ) -> None:
        self.n_dimensions = n_dimensions
        self.spans = spans
        self.memory = memory
        self.bound = dict(bound or {})

    @property
    def extents(self) -> tuple[int, ...]:
        """Number of points along each dimension."""
        extents = [1] * self.n_dimensions
        for span in self.spans.values():
            extents[span.dimension] = span.extent
        return tuple(extents)

    def evaluate(self, expression: Expression) -> Number:
        """Evaluate an expression.

        Raises:
            WorkError: If it contains an unknown operation.
        """
        match expression:
            case Constant():
                number = numbers.constant(expression.value, expression.dtype)
                return Number(number.value.reshape((1,) * self.n_dimensions), None, number.dtype)
            case Variable():
                return self.bound.get(expression) or self._values_of(expression)
            case Load():
                stored = self.memory.get(expression.buffer)
                if stored is None:
                    raise WorkError(
                        f"its definition reads {expression.buffer.name} before it is written"
                    )
                affine = [self._affine(index) for index in expression.indices]
                strided = self._strided(expression.buffer.shape, affine)
                if strided is not None:
                    return _read(stored, lambda array: _view(array, *strided))
                indices = [self.evaluate(index) for index in expression.indices]
                shape = expression.buffer.shape
                flat = np.zeros((1,) * self.n_dimensions, np.int64)
                for index, extent in zip(indices, shape, strict=True):
                    flat = flat * extent + np.clip(index.value.astype(np.int64), 0, extent - 1)
                number = _read(stored, lambda array: np.ravel(array)[flat])
                open_ = [index.error for index in indices if index.error is not None]
                if not open_:
                    return number
                is_open = reduce(np.maximum, open_) > 0.0
                return Number(number.value, np.where(is_open, UNKNOWN, number.errors), number.dtype)
            case Call():
                args = tuple(self.evaluate(arg) for arg in expression.args)
                try:
                    return numbers.apply(expression.operation, args, expression.dtype)
                except KeyError:
                    raise WorkError(
                        f"its definition has an operation {expression.operation} on "
                        f"{expression.dtype}, which has no reference"
                    ) from None

    def indices(self, expressions: tuple[Expression, ...]) -> tuple[Array, ...]:
        """Evaluate indices, as int64."""
        return tuple(self.evaluate(each).value.astype(np.int64) for each in expressions)

    def _values_of(self, variable: Variable) -> Number:
        span = self.spans[variable]
        shape = [1] * self.n_dimensions
        shape[span.dimension] = span.extent
        return Number(np.arange(span.start, span.stop).reshape(shape), None, variable.dtype)

    def _affine(  # noqa: PLR0911  one for each kind of expression
        self, expression: Expression
    ) -> _Affine | None:
        """Return an index as a linear form of the grid's variables, or None."""
        match expression:
            case Constant():
                return int(expression.value), {}
            case Variable():
                if expression in self.spans:
                    return 0, {expression: 1}
                value = self.bound[expression].value
                return (int(value.item()), {}) if value.size == 1 else None
            case Call(operation="Add" | "Sub" as operation):
                a, b = (self._affine(arg) for arg in expression.args)
                if a is None or b is None:
                    return None
                sign = 1 if operation == "Add" else -1
                factors = dict(a[1])
                for variable, factor in b[1].items():
                    factors[variable] = factors.get(variable, 0) + sign * factor
                return a[0] + sign * b[0], factors
            case Call(operation="Mul"):
                a, b = (self._affine(arg) for arg in expression.args)
                if a is None or b is None or (a[1] and b[1]):
                    return None
                (offset, factors), scale = (a, b[0]) if not b[1] else (b, a[0])
                return offset * scale, {each: f * scale for each, f in factors.items()}
            case Call(operation="Cast"):
                return self._affine(expression.args[0])
            case _:
                return None

    def _strided(
        self, shape: tuple[int, ...], affine: list[_Affine | None]
    ) -> tuple[int, tuple[int, ...], tuple[int, ...]] | None:
        """Return offset, shape and strides in elements of a view; None if it leaves the buffer."""
        offset, strides, extents = 0, [0] * self.n_dimensions, [1] * self.n_dimensions
        step = 1
        for extent, form in zip(reversed(shape), reversed(affine), strict=True):
            if form is None:
                return None
            first = last = form[0]
            for variable, factor in form[1].items():
                span = self.spans[variable]
                ends = (factor * span.start, factor * (span.stop - 1))
                first, last = first + min(ends), last + max(ends)
                offset += factor * span.start * step
                strides[span.dimension] += factor * step
                extents[span.dimension] = span.extent
            if first < 0 or last >= extent:
                return None
            offset += form[0] * step
            step *= extent
        return offset, tuple(extents), tuple(strides)


def _view(array: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    flat = np.ravel(array)[offset:]
    return np.lib.stride_tricks.as_strided(
        flat, shape, tuple(stride * flat.itemsize for stride in strides), writeable=False
    )


def _read(stored: Number, read: Any) -> Number:
    value = numbers.held(read(stored.value), stored.dtype)
    return Number(value, None if stored.error is None else read(stored.error), stored.dtype)


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
