"""Sorts by integers, among which NaN is the largest; no order of numbers holds it.

On CPUs, TVM's runtime sorts. On GPUs, each element counts the elements before it: one step without
an order, where TVM's sort takes a launch for each power of two. Long rows are cut into parts, and
the first elements of all parts are sorted again.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx

Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]

# Integers whose order is that of floating-point numbers, by the type of the numbers.
_KEYS = {"float16": "int16", "float32": "int32", "float64": "int64"}
# Integers that TVM's runtime sorts.
_SORTED_KEYS = {"int16": "int32"}
# Elements of a part, unless more are chosen than a quarter of it, and of a row that stays whole.
_PART, _WHOLE = 1024, 4096
# Comparisons up to which counting is faster than TVM's sort on GPUs.
_MAX_COMPARISONS = 1 << 31


def _topk(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    (x,), attrs = call.args, call.attrs
    dtype = str(x.ty.dtype)
    if dtype not in _KEYS:
        return call
    keys = builder.emit(builder.call_te(_keys, x, primfunc_name_hint="sort_keys"))
    sort = relax.op.topk(keys, attrs.k, attrs.axis, "both", bool(attrs.largest), attrs.dtype)
    chosen = builder.emit(sort)
    values = builder.emit(
        builder.call_te(
            _numbers, builder.emit(chosen[0]), dtype, primfunc_name_hint="sorted_numbers"
        )
    )
    return _results(builder, str(attrs.ret_type), values, chosen[1])


def _argsort(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    (x,), attrs = call.args, call.attrs
    if str(x.ty.dtype) not in _KEYS:
        return call
    keys = builder.emit(builder.call_te(_keys, x, primfunc_name_hint="sort_keys"))
    return relax.op.argsort(keys, attrs.axis, bool(attrs.descending), attrs.dtype)


def _results(builder: relax.BlockBuilder, kind: str, values: Any, indices: Any) -> relax.Expr:
    if kind == "both":
        return relax.Tuple([values, indices])
    return builder.emit(values if kind == "values" else indices)


def _keys(x: te.Tensor) -> te.Tensor:
    """Return integers in the order of numbers; all zeros are equal, and all NaN."""
    narrow = _KEYS[str(x.dtype)]
    wide = _SORTED_KEYS.get(narrow, narrow)
    return te.compute(x.shape, lambda *i: tirx.Cast(wide, _key(x(*i), narrow)), "keys")


def _key(number: Any, narrow: str) -> Any:
    bits = tirx.reinterpret(narrow, number)
    ordered = tirx.Select(bits < tirx.const(0, narrow), tirx.min_value(narrow) - bits, bits)
    return tirx.Select(tirx.isnan(number), tirx.max_value(narrow), ordered)


def _numbers(keys: te.Tensor, dtype: str) -> te.Tensor:
    """Return the numbers of keys."""
    narrow = _KEYS[dtype]
    low = tirx.min_value(narrow)

    def number(*i: Any) -> Any:
        key = tirx.Cast(narrow, keys(*i))
        return tirx.reinterpret(dtype, tirx.Select(key < tirx.const(0, narrow), low - key, key))

    return te.compute(keys.shape, number, "numbers")


def _topk_by_counting(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    (x,), attrs = call.args, call.attrs
    axis = int(attrs.axis) % len(x.ty.shape)
    n = int(x.ty.shape[axis])
    k = min(int(attrs.k), n) if int(attrs.k) > 0 else n
    indices = _first(builder, x, axis, k, bool(attrs.largest), str(attrs.dtype))
    if indices is None:
        return _topk(builder, call)
    values = builder.call_te(_elements, x, indices, axis, primfunc_name_hint="topk_values")
    return _results(builder, str(attrs.ret_type), builder.emit(values), indices)


def _argsort_by_counting(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    (x,), attrs = call.args, call.attrs
    axis = int(attrs.axis) % len(x.ty.shape)
    n = int(x.ty.shape[axis])
    indices = _first(builder, x, axis, n, bool(attrs.descending), str(attrs.dtype))
    return _argsort(builder, call) if indices is None else indices


def _first(
    builder: relax.BlockBuilder, x: relax.Expr, axis: int, k: int, descends: bool, dtype: str
) -> relax.Expr | None:
    """Return the indices of the first elements in order, the lower ones of equal elements first.

    Args:
        builder: The function.
        x: The elements.
        axis: Axis to sort along.
        k: Number of elements, not more than there are.
        descends: True if the largest come first.
        dtype: Type of the indices.

    Returns:
        The indices; None if counting takes longer than another sort.
    """
    shape = [int(n) for n in x.ty.shape]
    if 0 in shape:  # TVM's sort divides by the number of elements.
        return relax.const(np.zeros((*shape[:axis], k, *shape[axis + 1 :]), dtype))
    if str(x.ty.dtype) in ("bool", "bfloat16"):
        return None
    n, n_rows = shape[axis], math.prod(shape) // shape[axis]

    part = max(_PART, 4 << (k - 1).bit_length())
    part = n if n <= max(_WHOLE, part) else part
    if n_rows * n * part > _MAX_COMPARISONS:
        return None

    def emit(hint: str, define: Any, *args: Any) -> Any:
        return builder.emit(builder.call_te(define, *args, primfunc_name_hint=hint))

    keys, indices = emit("sort_keys", _ordered_keys, x, axis, part, descends), None
    while True:
        n_first = min(k, part)
        ranks = emit("sort_ranks", _ranks, keys, part)
        places = emit("sort_places", _places, ranks, n_first)
        here = emit("sort_indices", _indices, places, part)
        n = -(-n // part) * n_first
        indices = here if indices is None else emit("sort_indices", _taken, indices, here, n)
        if n == k:
            return emit("sort_indices", _in_shape, indices, shape, axis, k, dtype)
        last = int(tirx.max_value(keys.ty.dtype))
        part = n if n <= _WHOLE else part
        padded = -(-n // part) * part
        keys = emit("sort_keys", _taken, keys, here, padded, last)


def _ordered_keys(x: te.Tensor, axis: int, part: int, descends: bool) -> te.Tensor:
    """Return integers [rows, elements], the smallest first, and the largest as padding."""
    shape = [int(n) for n in x.shape]
    n, outer = shape[axis], [*shape[:axis], *shape[axis + 1 :]]
    dtype = _KEYS.get(str(x.dtype), str(x.dtype))

    def key(row: Any, i: Any) -> Any:
        rows = _unravelled(row, outer)
        number = x(*rows[:axis], tirx.min(i, n - 1), *rows[axis:])
        value = number if dtype == str(x.dtype) else _key(number, dtype)
        value = tirx.bitwise_not(value) if descends else value
        return tirx.Select(i < n, value, tirx.max_value(dtype))

    padded = -(-n // part) * part
    return te.compute((math.prod(outer), padded), key, "keys")


def _ranks(keys: te.Tensor, part: int) -> te.Tensor:
    """Return the number of elements before each element of its part, [rows, parts, elements]."""
    n_rows, n = (int(dim) for dim in keys.shape)
    other = te.reduce_axis((0, part), "other")

    def rank(row: Any, at: Any, i: Any) -> Any:
        one, each = keys(row, at * part + other), keys(row, at * part + i)
        is_before = tirx.Or(one < each, tirx.And(tirx.EQ(one, each), other < i))
        return te.sum(tirx.Cast("int32", is_before), axis=other)

    return te.compute((n_rows, n // part, part), rank, "ranks")


def _places(ranks: te.Tensor, n_first: int) -> te.Tensor:
    """Return where in its part each of its first elements is, [rows, parts, elements]."""
    n_rows, n_parts, part = (int(dim) for dim in ranks.shape)
    i = te.reduce_axis((0, part), "i")

    def place(row: Any, at: Any, rank: Any) -> Any:
        is_it = tirx.EQ(ranks(row, at, i), rank)
        return te.sum(tirx.Cast("int64", is_it) * i, axis=i)

    return te.compute((n_rows, n_parts, n_first), place, "places")


def _indices(places: te.Tensor, part: int) -> te.Tensor:
    """Return where in its row each of the first elements of its parts is, [rows, elements]."""
    n_rows, n_parts, n_first = (int(dim) for dim in places.shape)

    def index(row: Any, each: Any) -> Any:
        return places(row, each // n_first, each % n_first) + each // n_first * part

    return te.compute((n_rows, n_parts * n_first), index, "indices")


def _taken(values: te.Tensor, indices: te.Tensor, n: int, last: int = 0) -> te.Tensor:
    """Return the elements at indices of a row, padded with a last one to a number of elements."""
    n_rows, n_indices = (int(dim) for dim in indices.shape)

    def value(row: Any, i: Any) -> Any:
        taken = values(row, indices(row, tirx.min(i, n_indices - 1)))
        return tirx.Select(i < n_indices, taken, tirx.const(last, values.dtype))

    return te.compute((n_rows, n), value, "taken")


def _in_shape(rows: te.Tensor, shape: list[int], axis: int, k: int, dtype: str) -> te.Tensor:
    """Return the rows as elements along an axis."""
    outer = [*shape[:axis], *shape[axis + 1 :]]

    def element(*i: Any) -> Any:
        row: Any = 0
        for index, n in zip([*i[:axis], *i[axis + 1 :]], outer, strict=True):
            row = row * n + index
        return tirx.Cast(dtype, rows(row, i[axis]))

    return te.compute((*shape[:axis], k, *shape[axis + 1 :]), element, "indices")


def _elements(x: te.Tensor, indices: te.Tensor, axis: int) -> te.Tensor:
    """Return the elements at indices along an axis."""
    return te.compute(
        indices.shape, lambda *i: x(*i[:axis], indices(*i), *i[axis + 1 :]), "elements"
    )


def _unravelled(row: Any, outer: list[int]) -> list[Any]:
    indices: list[Any] = []
    for n in reversed(outer):
        indices.insert(0, row % n)
        row = row // n
    return indices


#: Definitions for CPUs, whose sorts call TVM's runtime.
SORTS_ON_CPUS: dict[str, Legalization] = {"relax.argsort": _argsort, "relax.topk": _topk}
#: Definitions for GPUs.
SORTS_ON_GPUS: dict[str, Legalization] = {
    "relax.argsort": _argsort_by_counting,
    "relax.topk": _topk_by_counting,
}
