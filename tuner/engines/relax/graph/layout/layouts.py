"""Layouts of tensors: the order in which the elements of each axis lie in memory.

A layout cuts each axis of a tensor into factors, from the slowest to the fastest, and gives the
order of all factors in memory. Channels-last is the order (N, H, W, C) of the axes (N, C, H, W).
Cutting axes makes every reshape and every permutation of axes a change of the layout alone: after
a flattening of channels-last images, axis 1 has the factors (C, H, W), and memory keeps its order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

Array = np.ndarray[Any, Any]
# An axis, and the index of one of its factors.
Factor = tuple[int, int]


class LayoutError(ValueError):
    """A tensor of another shape cannot have the layout."""


@dataclass(frozen=True)
class Layout:
    """The memory order of a tensor of a fixed shape.

    Attributes:
        factors: Extents of the factors of each axis, slowest first; at least one for each axis.
        order: All factors, slowest first: the dimensions of the stored tensor.
    """

    factors: tuple[tuple[int, ...], ...]
    order: tuple[Factor, ...]

    @classmethod
    def permuted(cls, shape: Sequence[int], permutation: Sequence[int] | None = None) -> Self:
        """Return the layout that stores whole axes, in their own order by default."""
        permutation = range(len(shape)) if permutation is None else permutation
        return cls(tuple((int(n),) for n in shape), tuple((int(axis), 0) for axis in permutation))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor as the network sees it."""
        return tuple(math.prod(factors) for factors in self.factors)

    @cached_property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the tensor in memory."""
        return tuple(self.extent(factor) for factor in self.order)

    @cached_property
    def is_plain(self) -> bool:
        """True if no axis is cut."""
        return all(len(factors) == 1 for factors in self.factors)

    @cached_property
    def is_identity(self) -> bool:
        """True if the tensor is stored as the network sees it."""
        return self.is_plain and self.permutation == tuple(range(len(self.factors)))

    @property
    def permutation(self) -> tuple[int, ...]:
        """Axis of each stored dimension."""
        return tuple(axis for axis, _ in self.order)

    def extent(self, factor: Factor) -> int:
        """Return the extent of a factor."""
        return self.factors[factor[0]][factor[1]]

    def dims_of(self, axis: int) -> list[int]:
        """Return the stored dimensions that hold an axis."""
        return [dim for dim, factor in enumerate(self.order) if factor[0] == axis]

    def is_whole(self, axis: int) -> bool:
        """Return True if one stored dimension holds the axis."""
        return len(self.factors[axis]) == 1

    def with_rank(self, rank: int) -> Self:
        """Return the layout with axes of extent 1 before it, as in a broadcast."""
        n_more = rank - len(self.factors)
        order = [(axis, 0) for axis in range(n_more)]
        order += [(axis + n_more, index) for axis, index in self.order]
        return type(self)(((1,),) * n_more + self.factors, tuple(order))

    def with_shape(self, shape: Sequence[int]) -> Self:
        """Return the same order for a tensor of another shape.

        Axes of extent 1 on either side, and axes that are whole, may differ.

        Raises:
            LayoutError: If an axis that is cut has another extent.
        """
        factors = []
        for own, extent in zip(self.factors, shape, strict=True):
            n = len(own)
            if math.prod(own) == extent:
                factors.append(own)
            elif extent == 1:
                factors.append((1,) * n)
            elif n == 1 or math.prod(own) == 1:
                factors.append((extent,) + (1,) * (n - 1))
            else:
                raise LayoutError(f"an axis of factors {own} cannot have extent {extent}")
        return type(self)(tuple(factors), self.order)

    def whole(self, axes: Sequence[int]) -> Self:
        """Return the layout where some axes are whole, each at the place of its last factor."""
        factors, order = list(self.factors), list(self.order)
        for axis in axes:
            last = max(self.dims_of(axis))
            order = [f for f in order if f[0] != axis or f == self.order[last]]
            order = [(axis, 0) if f[0] == axis else f for f in order]
            factors[axis] = (math.prod(factors[axis]),)
        return type(self)(tuple(factors), tuple(order))

    def permute(self, axes: Sequence[int]) -> Self:
        """Return the layout, in the same memory, of the tensor with its axes permuted."""
        new_axis = {axis: index for index, axis in enumerate(axes)}
        order = tuple((new_axis[axis], index) for axis, index in self.order)
        return type(self)(tuple(self.factors[axis] for axis in axes), order)

    def drop(self, axes: Sequence[int]) -> Self:
        """Return the layout without some axes."""
        kept = [axis for axis in range(len(self.factors)) if axis not in axes]
        order = tuple((kept.index(a), index) for a, index in self.order if a in kept)
        return type(self)(tuple(self.factors[axis] for axis in kept), order)

    def apply(self, array: Array) -> Array:
        """Store an array in this layout."""
        flat = [extent for factors in self.factors for extent in factors]
        position = {
            (axis, index): len([f for fs in self.factors[:axis] for f in fs]) + index
            for axis, factors in enumerate(self.factors)
            for index in range(len(factors))
        }
        transposed = array.reshape(flat).transpose([position[f] for f in self.order])
        return np.ascontiguousarray(transposed)

    def reshape(self, shape: Sequence[int]) -> Self | None:
        """Return the layout, in the same memory, of the tensor reshaped.

        Returns:
            None if the new axes cannot be made of factors of the old ones.
        """
        old = [extent for factors in self.factors for extent in factors]
        pieces = common_factors(old, shape)
        if pieces is None:
            return None
        names = iter(
            (axis, index)
            for axis, factors in enumerate(self.factors)
            for index in range(len(factors))
        )
        parts = dict(zip(names, _cut(old, pieces), strict=True))
        new = _cut(list(shape), pieces)
        owner = {
            piece: (axis, index)
            for axis, numbers in enumerate(new)
            for index, piece in enumerate(numbers)
        }
        order = [owner[piece] for factor in self.order for piece in parts[factor]]
        extents = [[pieces[number] for number in numbers] for numbers in new]
        factors, merged = _merged(extents, order)
        return type(self)(factors, merged)


def common_factors(left: Sequence[int], right: Sequence[int]) -> list[int] | None:
    """Return the coarsest common factors of two row-major shapes, without ones.

    Returns:
        None if there are none: 6x4 and 8x3 have no common factors.
    """
    pieces: list[int] = []
    a, b = [n for n in left if n != 1], [n for n in right if n != 1]
    while a and b:
        small, large = sorted((a[-1], b[-1]))
        if large % small:
            return None
        pieces.append(small)
        for shape in (a, b):
            shape[-1] //= small
            if shape[-1] == 1:
                shape.pop()
    return None if a or b else pieces[::-1]


def _cut(shape: Sequence[int], pieces: list[int]) -> list[list[int]]:
    """Return the numbers of the pieces that make each extent of a shape."""
    numbers, cut = iter(range(len(pieces))), []
    for extent in shape:
        own: list[int] = []
        while math.prod(pieces[number] for number in own) < extent:
            own.append(next(numbers))
        cut.append(own)
    return cut


def _merged(
    extents: list[list[int]], order: list[Factor]
) -> tuple[tuple[tuple[int, ...], ...], tuple[Factor, ...]]:
    """Merge factors that follow each other in memory and place the axes of extent 1."""
    names: dict[Factor, Factor] = {}
    factors: list[list[int]] = [[] for _ in extents]
    runs: list[list[Factor]] = []
    for factor in order:
        if runs and runs[-1][-1] == (factor[0], factor[1] - 1):
            runs[-1].append(factor)
        else:
            runs.append([factor])
    starts = {run[0]: run for run in runs}
    for axis, own in enumerate(extents):
        for index in range(len(own)):
            run = starts.get((axis, index))
            if run is not None:
                names[(axis, index)] = (axis, len(factors[axis]))
                factors[axis].append(math.prod(extents[a][i] for a, i in run))
    merged = [names[run[0]] for run in runs]
    for axis, own in enumerate(factors):
        if not own:
            own.append(1)
            places = [place for place, factor in enumerate(merged) if factor[0] == axis - 1]
            merged.insert(max(places) + 1 if places else 0, (axis, 0))
    return tuple(tuple(own) for own in factors), tuple(merged)
