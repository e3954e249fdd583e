"""Decompositions of operators that neither TVM's importer nor torch's core operators have."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table

from tuner.networks.torch.programs import grouped_product
from tuner.networks.torch.torch_special import SPECIAL_FUNCTIONS

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


def _masked_scatter(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the elements of another one in order where a mask holds."""
    x, mask = torch.broadcast_tensors(x, mask)
    if not source.numel():
        return x.clone()
    place = (mask.flatten().cumsum(0) - 1).clamp(0, source.numel() - 1)
    return torch.where(mask, source.flatten()[place].reshape(x.shape), x)


def _places(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> torch.Tensor | None:
    """Return the places of elements of the storage in a tensor; None if it has not all of them."""
    start = 0 if storage_offset is None else storage_offset - x.storage_offset()
    last = start + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if not x.is_contiguous() or start < 0 or (0 not in size and last >= x.numel()):
        return None
    place = torch.full([1] * len(size), start, device=x.device)
    for axis, (n, step) in enumerate(zip(size, stride, strict=True)):
        shape = [-1 if other == axis else 1 for other in range(len(size))]
        place = place + (torch.arange(n, device=x.device) * step).reshape(shape)
    return place


def _strided(x: torch.Tensor, *where: Any) -> Any:
    """Return the elements at regular places of the storage."""
    place = _places(x, *where)
    return NotImplemented if place is None else x.flatten()[place]


def _strided_scatter(x: torch.Tensor, source: torch.Tensor, *where: Any) -> Any:
    """Return a tensor with other elements at regular places of its storage."""
    place = _places(x, *where)
    return NotImplemented if place is None else _with_elements(x, place, source)


def _diagonal_scatter(x: torch.Tensor, source: torch.Tensor, *axes: int, **named: int) -> Any:
    """Return a tensor with other elements on a diagonal."""
    numbers = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    return _with_elements(x, torch.diagonal(numbers, *axes, **named), source)


def _with_elements(x: torch.Tensor, place: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    elements = source.expand(place.shape).flatten()
    return x.flatten().index_put((place.flatten(),), elements).reshape(x.shape)


def _adaptive_max_pool(x: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Return the largest element of each window, and its place in the flat input."""
    n_axes = len(sizes)
    tables = []
    for n, n_windows in zip(x.shape[-n_axes:], sizes, strict=True):
        number = torch.arange(n_windows, device=x.device)
        start, end = number * n // n_windows, ((number + 1) * n + n_windows - 1) // n_windows
        width = max(-(-(i + 1) * n // n_windows) - i * n // n_windows for i in range(n_windows))
        # Shorter windows have their last element more than once, which changes no maximum.
        place = start[:, None] + torch.arange(width, device=x.device)
        tables.append(torch.minimum(place, end[:, None] - 1))
    place = tables[0]
    for n, table in zip(x.shape[1 - n_axes :], tables[1:], strict=True):
        place = (place[..., None, :, None] * n + table[:, None, :]).flatten(-2)
    values, which = x.flatten(-n_axes)[..., place].max(-1)
    return values, place.expand(*which.shape, -1).gather(-1, which[..., None]).squeeze(-1)


def _grouped(
    x: torch.Tensor,
    weights: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """Return the products of the rows of each group, in the only form that networks have."""
    if (x.ndim, weights.ndim) != (2, 3) or offs is None or bias is not None or out_dtype:
        return NotImplemented
    return grouped_product(x, weights, offs)


def _scatter_reduce(
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    how: str,
    *,
    include_self: bool = True,
) -> Any:
    """Return means of the elements at indices, and other reductions of as many of them."""
    shape = index.shape
    if how != "mean" and source.shape == shape:
        return NotImplemented
    source = source[tuple(slice(size) for size in shape)]

    def reduced(how: str, x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(dim, index, source, how, include_self=include_self)

    if how != "mean":
        return reduced(how, x, source)
    counts = reduced("sum", torch.ones_like(x), torch.ones_like(source))
    rounding = None if x.is_floating_point() else "floor"
    return torch.div(reduced("sum", x, source), counts, rounding_mode=rounding)


def _scatter_add(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
    return x.scatter_reduce(dim, index, source, "sum")


def _repeated(repeats: torch.Tensor, *, output_size: int | None = None) -> Any:
    """Return the index of each element that is repeated, where their number is known."""
    if output_size is None:
        return NotImplemented
    place = torch.arange(output_size, device=repeats.device)
    return (place[:, None] >= repeats.cumsum(0)).sum(1).to(repeats.dtype)


def _histogram(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:  # noqa: A002
    """Return the number of elements in each of some equal parts of a range."""
    if min == max:
        return NotImplemented
    x = x.flatten()
    # In the precision of the numbers, as torch computes.
    low, high = (torch.full((), each, dtype=x.dtype, device=x.device) for each in (min, max))
    part = ((x - low) * bins / (high - low)).floor().clamp(max=bins - 1)
    is_part = part[:, None] == torch.arange(bins, device=x.device)
    return (is_part & (x >= min)[:, None] & (x <= max)[:, None]).sum(0).to(x.dtype)


def _searchsorted(
    ordered: torch.Tensor,
    x: torch.Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the number of smaller elements in rows that are in order, which NaN is above."""
    if sorter is not None:
        ordered = ordered.gather(-1, sorter)
    is_above = torch.gt if right or side == "right" else torch.ge
    rows = ordered if ordered.ndim == 1 else ordered.unsqueeze(-2)
    counts = torch.logical_not(is_above(rows, x.unsqueeze(-1))).sum(-1)
    return counts.to(torch.int32) if out_int32 else counts


def _distances(x: torch.Tensor, y: torch.Tensor, p: float = 2.0, _: Any = None) -> torch.Tensor:
    """Return the distance of each row of one matrix from each row of another one."""
    return torch.linalg.vector_norm(x[..., :, None, :] - y[..., None, :, :], p, -1)


def _pair_distances(x: torch.Tensor, p: float = 2.0) -> torch.Tensor:
    """Return the distance of each row from each later one."""
    first, second = torch.triu_indices(len(x), len(x), 1, device=x.device)
    return torch.linalg.vector_norm(x[first] - x[second], p, -1)


def _kth_value(
    x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[torch.Tensor, ...]:
    """Return the k-th smallest element of an axis and its place."""
    results = (each.narrow(dim, k - 1, 1) for each in x.sort(dim=dim, stable=True))
    return tuple(each if keepdim else each.squeeze(dim) for each in results)


def _nan_median(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, ...]:
    """Return the lower median of the numbers along an axis, and its place."""
    values, order = x.sort(dim=dim, stable=True)
    n_numbers = x.isnan().logical_not().sum(dim, keepdim=True)
    middle = torch.div(n_numbers - 1, 2, rounding_mode="floor").clamp(min=0)
    results = (each.gather(dim, middle) for each in (values, order))
    return tuple(each if keepdim else each.squeeze(dim) for each in results)


def _top(x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:  # noqa: A002
    """Return the largest elements in order where torch leaves their order open."""
    return NotImplemented if sorted else x.topk(k, dim, largest)


def _mode(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, ...]:
    """Return the smallest of the most frequent elements of an axis and its last place."""
    values, order = (each.movedim(dim, -1) for each in x.sort(dim=dim, stable=True))
    # NaN is equal to nothing.
    counts = (values[..., None] == values[..., None, :]).sum(-1).clamp(min=1)
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


def _along_axis(operator: Any, function: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a function that gives scalars an axis; other tensors keep theirs, and the operator.

    Args:
        operator: Operator along an axis.
        function: Function of tensors that are not scalars in place of the operator.
    """

    def convert(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.ndim:
            return function(x, *args, **kwargs) if function else NotImplemented
        with_axis = (
            each.unsqueeze(0) if isinstance(each, torch.Tensor) and not each.ndim else each
            for each in (x, *args)
        )
        results = operator(*with_axis, **kwargs)
        is_single = isinstance(results, torch.Tensor)
        return results.reshape(()) if is_single else tuple(each.reshape(()) for each in results)

    return convert


_aten = torch.ops.aten
_FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    _aten.cummax.default: _extreme_so_far(torch.ge),
    _aten.cummin.default: _extreme_so_far(torch.le),
    _aten.kthvalue.default: _kth_value,
    _aten.mode.default: _mode,
    _aten.nanmedian.dim: _nan_median,
    _aten.scatter_add.default: _scatter_add,
    _aten.scatter_reduce.two: _scatter_reduce,
    _aten.topk.default: _top,
}
_ALONG_AXIS = (
    *_FUNCTIONS,
    *(_aten.gather.default, _aten.index_select.default),
    *(_aten.argmax.default, _aten.argmin.default, _aten.cumprod.default, _aten.cumsum.default),
    *(_aten.logcumsumexp.default, _aten.max.dim, _aten.median.dim, _aten.min.dim),
    *(_aten.scatter.src, _aten.scatter.value, _aten.sort.default, _aten.sort.stable),
    _aten.var.correction,
)
#: Functions of the operands by operator.
DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    **SPECIAL_FUNCTIONS,
    _aten._embedding_bag.default: _embedding_bag,
    _aten._embedding_bag_forward_only.default: _embedding_bag,
    _aten._cdist_forward.default: _distances,
    _aten.cdist.default: _distances,
    _aten._neg_view.default: torch.neg,
    _aten._pdist_forward.default: _pair_distances,
    _aten.adaptive_max_pool2d.default: _adaptive_max_pool,
    _aten.adaptive_max_pool3d.default: _adaptive_max_pool,
    _aten._grouped_mm.default: _grouped,
    _aten.as_strided.default: _strided,
    _aten.as_strided_scatter.default: _strided_scatter,
    _aten.diagonal_scatter.default: _diagonal_scatter,
    _aten.histc.default: _histogram,
    _aten.masked_scatter.default: _masked_scatter,
    _aten.nanmedian.default: lambda x: _nan_median(x.flatten())[0],
    _aten.repeat_interleave.Tensor: _repeated,
    _aten.searchsorted.Tensor: _searchsorted,
    **{
        operator: decomposition_table[operator]
        for operator in (
            _aten.tril_indices.default,
            _aten.triu_indices.default,
        )
    },
    **{operator: _along_axis(operator, _FUNCTIONS.get(operator)) for operator in _ALONG_AXIS},
}
