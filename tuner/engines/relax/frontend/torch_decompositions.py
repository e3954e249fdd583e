"""Decompositions of operators that neither TVM's importer nor torch's core operators have."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._decomp import decomposition_table

_SUM, _MEAN, _MAX = range(3)
# Operands of a bag behind its offsets, in order, with their defaults.
_OPTIONS: Mapping[str, Any] = {
    **{"scale_grad_by_freq": False, "mode": _SUM, "sparse": False, "per_sample_weights": None},
    **{"include_last_offset": False, "padding_idx": -1},
}


def _embedding_bag(
    weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, *options: Any, **named: Any
) -> tuple[torch.Tensor, ...]:
    """Return sums, means or maxima of the rows of each bag, and the bag of each row and its size.

    A bag begins at its offset among the indices and ends where the next one begins. Rows at the
    index of padding belong to none. The last result, the places of maxima, has a gradient alone.
    """
    given = {**_OPTIONS, **dict(zip(_OPTIONS, options, strict=False)), **named}
    mode, per_sample_weights = given["mode"], given["per_sample_weights"]
    starts = offsets[:-1] if given["include_last_offset"] else offsets
    place = torch.arange(len(indices), dtype=starts.dtype, device=indices.device)
    bags = (place[:, None] >= starts).sum(1) - 1
    is_row = (indices != given["padding_idx"])[:, None]
    sizes = torch.zeros_like(starts, dtype=torch.int64).index_add(0, bags, is_row[:, 0].long())
    rows = weight[indices]
    result = torch.zeros(len(starts), rows.shape[1], dtype=rows.dtype, device=rows.device)
    if mode == _MAX:
        rows = torch.where(is_row, rows, float("-inf"))
        places = bags[:, None].expand_as(rows)
        largest = (result - float("inf")).scatter_reduce(0, places, rows, "amax")
        return torch.where(sizes[:, None] > 0, largest, 0.0), bags, sizes, sizes
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    result = result.index_add(0, bags, torch.where(is_row, rows, 0.0))
    if mode == _MEAN:
        result = result / sizes.clamp(min=1)[:, None]
    return result, bags, sizes, sizes


def _hypot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the length of a vector, whose square may leave the range."""
    x, y = x.abs(), y.abs()
    larger, smaller = torch.maximum(x, y), torch.minimum(x, y)
    is_regular = (larger > 0) & (larger < float("inf"))
    ratio = torch.where(is_regular, smaller / larger, 0.0)
    length = larger * torch.sqrt(1 + ratio * ratio)
    return torch.where((x == float("inf")) | (y == float("inf")), float("inf"), length)


_aten = torch.ops.aten
#: Functions of the operands by operator.
DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    _aten._embedding_bag.default: _embedding_bag,
    _aten._embedding_bag_forward_only.default: _embedding_bag,
    _aten._neg_view.default: torch.neg,
    _aten.hypot.default: _hypot,
    **{
        operator: decomposition_table[operator]
        for operator in (_aten.tril_indices.default, _aten.triu_indices.default)
    },
}
