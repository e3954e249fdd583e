"""Decompositions of operators that neither TVM's importer nor torch's core operators have."""

import functools
import math
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


def _in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a tensor that computes in float64."""

    @functools.wraps(function)
    def convert(x: torch.Tensor) -> torch.Tensor:
        return function(x.double()).to(torch.result_type(x, 1.0))

    return convert


# Coefficients of Lanczos' series with g = 7, as Godfrey computed them.
_LANCZOS = (
    *(0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313),
    *(-176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6),
    1.5056327351493116e-7,
)


@_in_float64
def _lgamma(x: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the gamma function, by reflection left of 0.5."""
    is_left = x < 0.5
    z = torch.where(is_left, -x, x - 1)
    total = _LANCZOS[0] + sum(each / (z + n) for n, each in enumerate(_LANCZOS[1:], 1))
    shifted = z + 7.5
    right = (z + 0.5) * shifted.log() - shifted + (total * math.sqrt(2 * math.pi)).log()
    sine = (math.pi * (x - x.round()).abs()).sin()
    result = torch.where(is_left, math.log(math.pi) - sine.log() - right, right)
    return torch.where(x.isinf(), math.inf, result)


@_in_float64
def _erfinv(y: torch.Tensor) -> torch.Tensor:
    """Return the inverse of the error function: Winitzki's estimate, and steps of Halley."""
    rest = ((1 - y) * (1 + y)).log()
    estimate = 2 / (math.pi * 0.147) + rest / 2
    square = (estimate * estimate - rest / 0.147).sqrt() - estimate
    x = y.sign() * square.clamp(min=0).sqrt()
    for _ in range(3):
        step = (torch.erf(x) - y) * (x * x).exp() * (math.sqrt(math.pi) / 2)
        x = x - step / (1 + x * step)
    return torch.where(y.abs() < 1, x, torch.where(y.abs() == 1, y * math.inf, math.nan))


def _distances(x: torch.Tensor, y: torch.Tensor, p: float = 2.0, _: Any = None) -> torch.Tensor:
    """Return the distance of each row of one matrix from each row of another one."""
    return torch.linalg.vector_norm(x[..., :, None, :] - y[..., None, :, :], p, -1)


def _kth_value(
    x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[torch.Tensor, ...]:
    """Return the k-th smallest element of an axis and its place."""
    results = (each.narrow(dim, k - 1, 1) for each in x.sort(dim=dim, stable=True))
    return tuple(each if keepdim else each.squeeze(dim) for each in results)


def _mode(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, ...]:
    """Return the smallest of the most frequent elements of an axis and its last place."""
    values, order = (each.movedim(dim, -1) for each in x.sort(dim=dim, stable=True))
    counts = (values[..., None] == values[..., None, :]).sum(-1)
    first = counts.argmax(-1, keepdim=True)
    last = first + counts.gather(-1, first) - 1
    results = (values.gather(-1, first), order.gather(-1, last))
    return tuple(each.movedim(-1, dim) if keepdim else each.squeeze(-1) for each in results)


def _extreme_so_far(
    is_kept: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[..., Any]:
    """Return the function of the extremes up to each element and their places, by doubling."""

    def convert(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        n_elements, step = x.shape[dim], 1
        shape = [-1 if axis == dim % x.ndim else 1 for axis in range(x.ndim)]
        place = torch.arange(n_elements, device=x.device).reshape(shape).expand(x.shape)
        while step < n_elements:
            before, place_before = (
                torch.cat([each.narrow(dim, 0, step), each.narrow(dim, 0, n_elements - step)], dim)
                for each in (x, place)
            )
            keep = is_kept(x, before) | x.isnan()
            x, place = torch.where(keep, x, before), torch.where(keep, place, place_before)
            step *= 2
        return x, place

    return convert


_aten = torch.ops.aten
#: Functions of the operands by operator.
DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    _aten._embedding_bag.default: _embedding_bag,
    _aten._embedding_bag_forward_only.default: _embedding_bag,
    _aten._cdist_forward.default: _distances,
    _aten.cdist.default: _distances,
    _aten._neg_view.default: torch.neg,
    _aten.cummax.default: _extreme_so_far(torch.ge),
    _aten.cummin.default: _extreme_so_far(torch.le),
    _aten.erfinv.default: _erfinv,
    _aten.hypot.default: _hypot,
    _aten.kthvalue.default: _kth_value,
    _aten.lgamma.default: _lgamma,
    _aten.mode.default: _mode,
    **{
        operator: decomposition_table[operator]
        for operator in (_aten.tril_indices.default, _aten.triu_indices.default)
    },
}
