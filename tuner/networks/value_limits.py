"""Limits of the values of inputs that operators take as indices and divisors.

An operator may read an input through others that only move numbers. What becomes of each element
is found by moving numbers that name the elements in their place.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tuner.errors import ModelError
from tuner.library.limits import InputLimit, Part
from tuner.networks.graph import Array

#: Elements up to which values are followed; larger ones are data.
MAX_SIZE = 1 << 24
#: Name of an element that is computed, or that is part of a constant.
OTHER = -1


@dataclass(frozen=True)
class Use:
    """Whole numbers that an operator takes as indices or divisors.

    Attributes:
        reader: Operator that takes them, and its name.
        low: Smallest index; None for a divisor, which must not be 0.
        high: Largest index; None for a divisor.
    """

    reader: str
    low: int | None = None
    high: int | None = None


class Elements:
    """Names of the elements of all inputs: consecutive numbers."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = shapes
        self._first: dict[str, int] = {}
        total = 0
        for name, shape in shapes.items():
            self._first[name] = total
            total += prod(shape)

    def of(self, name: str) -> Array | None:
        """Return the names of the elements of an input; None for a large one."""
        shape = self._shapes[name]
        if prod(shape) > MAX_SIZE:
            return None
        first = self._first[name]
        return np.arange(first, first + prod(shape)).reshape(shape)

    def limits(self, use: Use, elements: Array) -> Iterator[InputLimit]:
        """Yield the limits that a use of some elements sets to inputs."""
        for name, first in self._first.items():
            shape = self._shapes[name]
            places = elements[(elements >= first) & (elements < first + prod(shape))] - first
            part = _part(np.unique(places), shape) if places.size else None
            if part is not None:
                yield InputLimit(name, use.reader, use.low, use.high, part)


def check_constant(use: Use, values: Array) -> None:
    """Check constant indices or divisors.

    Raises:
        ModelError: If one of them is outside of the limits of its use.
    """
    if not values.size:
        return
    if use.low is None or use.high is None:
        if not values.all():
            raise ModelError(f"{use.reader} divides by the constant 0", code="invalid-model")
        return
    for end in (values.min(), values.max()):
        if not use.low <= end <= use.high:
            raise ModelError(
                f"{use.reader} has the constant index {end}, but takes indices from {use.low} to "
                f"{use.high}",
                code="invalid-model",
            )


def merged(limits: Iterable[InputLimit]) -> tuple[InputLimit, ...]:
    """Return limits with the tightest of each kind for the same elements."""
    tightest: dict[Any, InputLimit] = {}
    for limit in limits:
        key = (limit.input, limit.part, limit.low is None)
        kept = tightest.setdefault(key, limit)
        if limit.low is None or kept.low is None or limit.high is None or kept.high is None:
            continue
        reader = limit.reader if limit.high < kept.high else kept.reader
        low, high = max(kept.low, limit.low), min(kept.high, limit.high)
        tightest[key] = replace(kept, reader=reader, low=low, high=high)
    return tuple(tightest.values())


def by_column(reader: str, sizes: Sequence[int], values: Array) -> Iterator[tuple[Use, Array]]:
    """Yield the use of each column of rows that index several axes at once."""
    for column, size in enumerate(sizes[: values.shape[-1]]):
        yield Use(reader, -size, size - 1), values[..., column]


def _part(places: Array, shape: tuple[int, ...]) -> Part | None:
    """Return the elements at flat places, in order, as a slice; None if they are not one."""
    if len(places) == prod(shape):
        return ()
    part = []
    for along in np.unravel_index(places, shape):
        values = np.unique(along)
        step = int(values[1] - values[0]) if len(values) > 1 else 1
        part.append((int(values[0]), int(values[-1]) + 1, step))
    is_slice = prod(len(range(*each)) for each in part) == len(places)
    return tuple(part) if is_slice else None
