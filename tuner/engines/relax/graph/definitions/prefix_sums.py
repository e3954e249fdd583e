"""Prefix sums as loops that a search can schedule, instead of a serial call."""

import math
from typing import Any

from tvm import relax, te, tirx

# Below this length, one pass over all pairs of elements is as fast as two passes over blocks.
_MAX_DIRECT = 64


def legalise_cumsum(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Replace ``relax.cumsum`` by a kernel of reductions."""
    attrs = call.attrs
    data = call.args[0]
    dtype = str(call.ty.dtype)
    if attrs.axis is None:
        data = builder.emit(relax.op.reshape(data, call.ty.shape))
    axis = int(attrs.axis or 0) % len(call.ty.shape)
    return builder.call_te(
        _prefix_sums, data, axis, dtype, bool(attrs.exclusive), primfunc_name_hint="cumsum"
    )


def _prefix_sums(data: te.Tensor, axis: int, dtype: str, exclusive: bool) -> te.Tensor:
    """Sum the elements up to each element along an axis.

    Blocks of about the square root of the length are summed first, and the sums of the blocks
    before are added: n ** 1.5 additions in parallel instead of n in series.
    """
    shape = [int(dim) for dim in data.shape]
    length = shape[axis]
    block = length if length <= _MAX_DIRECT else 1 << round(math.log2(length) / 2)
    n_blocks = -(-length // block)

    def element(outer: tuple[Any, ...], index: Any) -> Any:
        value = data(*outer[:axis], tirx.min(index, length - 1), *outer[axis:]).astype(dtype)
        return tirx.if_then_else(index < length, value, tirx.const(0, dtype))

    outer = [*shape[:axis], *shape[axis + 1 :]]
    inside = te.reduce_axis((0, block), "inside")

    def within(b: Any, j: Any, *rest: Any) -> Any:
        counts = inside < j if exclusive else inside <= j
        value = element(rest, b * block + inside)
        return te.sum(tirx.if_then_else(counts, value, tirx.const(0, dtype)), axis=inside)

    sums = te.compute((n_blocks, block, *outer), within, "sums")
    if n_blocks == 1:
        return te.compute(
            shape, lambda *i: sums(0, i[axis], *i[:axis], *i[axis + 1 :]), "prefix_sums"
        )
    whole = te.reduce_axis((0, block), "whole")
    totals = te.compute(
        (n_blocks, *outer),
        lambda b, *rest: te.sum(element(rest, b * block + whole), axis=whole),
        "totals",
    )
    before = te.reduce_axis((0, n_blocks), "before")
    carries = te.compute(
        (n_blocks, *outer),
        lambda b, *rest: te.sum(
            tirx.if_then_else(before < b, totals(before, *rest), tirx.const(0, dtype)), axis=before
        ),
        "carries",
    )

    def prefix_sum(*i: Any) -> Any:
        rest = (*i[:axis], *i[axis + 1 :])
        return sums(i[axis] // block, i[axis] % block, *rest) + carries(i[axis] // block, *rest)

    return te.compute(shape, prefix_sum, "prefix_sums")
