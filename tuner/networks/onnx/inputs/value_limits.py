"""Limits of the values of inputs that operators take as indices and divisors.

An operator may read an input through others that only move numbers. What becomes of each element
is found by moving numbers that name the elements in their place.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from tuner.errors import ModelError
from tuner.library.limits import InputLimit, Part
from tuner.networks.onnx.graph import Array

#: Elements up to which values are followed; larger ones are data.
MAX_SIZE = 1 << 24
#: Name of an element that is computed, or that is part of a constant.
OTHER = -1
# Slices of one input that a use may have; more would take long to check at each call.
_MAX_PARTS = 64


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
    """Names of the elements of all inputs: consecutive numbers.

    Elements to which a length is added where they are negative have names of their own.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = shapes
        self._first: dict[str, int] = {}
        total = 0
        for name, shape in shapes.items():
            self._first[name] = total
            total += prod(shape)
        self._total = total
        # Length that was added to negative elements, by the first of their names.
        self._lengths: dict[int, int | None] = {0: None}

    def of(self, name: str) -> Array | None:
        """Return the names of the elements of an input; None for a large one."""
        shape = self._shapes[name]
        if prod(shape) > MAX_SIZE:
            return None
        first = self._first[name]
        return np.arange(first, first + prod(shape)).reshape(shape)

    def wrapped(self, elements: Array, length: int) -> Array:
        """Return the names of elements to which a length is added where they are negative."""
        offset = len(self._lengths) * self._total
        self._lengths[offset] = length
        is_plain = (elements >= 0) & (elements < self._total)
        return np.where(is_plain, elements + offset, OTHER)

    def limits(self, use: Use, elements: Array) -> Iterator[InputLimit]:
        """Yield the limits that a use of some elements sets to inputs.

        A use of more slices of an input than are quick to check sets none.
        """
        for offset, length in self._lengths.items():
            low = use.low if length is None else -length
            # What else is added to an index computes another one.
            if length is not None and (use.high is None or use.high + 1 != length):
                continue
            for name, start in self._first.items():
                first, shape = start + offset, self._shapes[name]
                places = elements[(elements >= first) & (elements < first + prod(shape))] - first
                if not places.size:
                    continue
                mask = np.zeros(prod(shape), bool)
                mask[places] = True
                parts = [*islice(_parts(mask.reshape(shape)), _MAX_PARTS + 1)]
                for part in parts if len(parts) <= _MAX_PARTS else ():
                    yield InputLimit(name, use.reader, low, use.high, part)


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


def _parts(mask: Array) -> Iterator[Part]:
    """Yield slices that are together the elements of a mask; an empty one for all elements."""
    if mask.all():
        yield ()
        return
    rows, places = np.unique(mask.reshape(len(mask), -1), axis=0, return_inverse=True)
    for index, row in enumerate(rows):
        if not row.any():
            continue
        runs = [*islice(_runs(np.flatnonzero(places == index)), _MAX_PARTS + 1)]
        for inner in _parts(row.reshape(mask.shape[1:])):
            whole = inner or tuple((0, size, 1) for size in mask.shape[1:])
            yield from ((run, *whole) for run in runs)


def _runs(places: Array) -> Iterator[tuple[int, int, int]]:
    """Yield the start, stop and step of parts of ascending places that have equal steps."""
    start = 0
    while start < len(places):
        steps = np.diff(places[start:])
        step = int(steps[0]) if steps.size else 1
        changes = np.flatnonzero(steps != step)
        end = start + int(changes[0] if changes.size else steps.size)
        yield int(places[start]), int(places[end]) + 1, step
        start = end + 1
