"""Limits of input values that callers of a library may not leave: indices and divisors."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

from tuner.library.wrapper import LibraryWrapper

if TYPE_CHECKING:
    from tuner.library.arrays import Array
    from tuner.library.loading import Library
    from tuner.library.manifest import Manifest, Program

Part = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class InputLimit:
    """A limit of the whole numbers of an input.

    Attributes:
        input: Name of the input.
        reader: Operator that takes them as indices or divisors.
        low: Smallest index, None for a divisor, which must not be 0.
        high: Largest index; None for a divisor.
        part: Start, stop and step along each axis of the elements that it reads; empty for all.
    """

    input: str
    reader: str
    low: int | None = None
    high: int | None = None
    part: Part = ()

    def part_of(self, array: "Array") -> "Array":
        """Return the elements of an input that it limits, as a view."""
        index: tuple[Any, ...] = (*(slice(*each) for each in self.part), ...)
        part: Array = array[index]
        return part

    def check(self, array: "Array") -> None:
        """Check an input.

        Raises:
            ValueError: If it leaves the limit; the message names it.
        """
        values = self.part_of(array)
        if not values.size:
            return
        if self.low is None or self.high is None:
            if not values.all():
                raise ValueError(f"input {self.input!r} has a 0, by which {self.reader} divides")
            return
        for end in (values.min(), values.max()):
            if not self.low <= end <= self.high:
                raise ValueError(
                    f"input {self.input!r} has the index {end}, but {self.reader} takes indices "
                    f"from {self.low} to {self.high}"
                )


Limits = tuple[InputLimit, ...]


def limits_at(
    sizes: Mapping[str, int], known: Sequence[tuple[Mapping[str, int], Limits]]
) -> Limits:
    """Return the limits of inputs with some sizes of their dynamic dimensions.

    An index beyond the caller's own size would read the padding. Two programs tell how the length
    of an axis grows with a dimension; one alone tells nothing but its own limits.

    Args:
        sizes: Size by dimension, at most the largest of the programs.
        known: Sizes and limits of programs, one for each combination of sizes.
    """
    if not sizes:
        return known[0][1]
    (name, size), *others = sizes.items()
    ends = sorted({own[name] for own, _ in known}, key=lambda end: (end < size, abs(end - size)))
    bucket, *other = (
        limits_at(dict(others), [each for each in known if each[0][name] == end])
        for end in ends[:2]
    )
    if size == ends[0] or not other or len(bucket) != len(other[0]):
        return bucket
    share = (ends[0] - size) / (ends[0] - ends[1])

    def length(one: int, end: int) -> int:
        # A sum of the dimension and a number is linear; a product of dimensions is less than
        # proportional to each size below. The larger one refuses no index of either.
        return ceil(max(one + share * (end - one), one * size / ends[0]))

    def between(one: InputLimit, end: InputLimit) -> InputLimit:
        if one.low is None or one.high is None or end.low is None or end.high is None:
            return one
        low, high = -length(-one.low, -end.low), length(one.high + 1, end.high + 1) - 1
        return replace(one, low=low, high=high)

    return tuple(map(between, bucket, other[0]))


class LimitsByShapes:
    """Limits of the inputs of each program of a library."""

    def __init__(self, programs: Iterable["Program"] = ()) -> None:
        self._programs = [(program.inputs, program.limits) for program in programs]

    def __bool__(self) -> bool:
        return any(limits for _, limits in self._programs)

    def check(self, arrays: Mapping[str, "Array"]) -> None:
        """Check the inputs of the program that takes arrays of these shapes.

        Raises:
            ValueError: If an input leaves a limit; the message names it.
        """
        for inputs, limits in self._programs:
            if all(arrays[name].shape == shape for name, (shape, _) in inputs.items()):
                for limit in limits:
                    limit.check(arrays[limit.input])
                return


class LimitedLibrary(LibraryWrapper):
    """A library that refuses inputs beyond their limits.

    On a GPU the values of inputs are not read: its kernels bound what leaves the limits.
    """

    def __init__(self, library: "Library", limits: LimitsByShapes) -> None:
        super().__init__(library)
        self._limits = limits

    def run_arrays(self, arrays: Mapping[str, "Array"]) -> dict[str, "Array"]:
        """Run the network on inputs within their limits.

        Raises:
            ValueError: If an input cannot be used; the message names it.
        """
        import numpy as np  # clients read manifests without it

        # The library refuses others.
        if set(arrays) == set(self.inputs) and all(hasattr(a, "shape") for a in arrays.values()):
            plain = {name: np.asarray(array) for name, array in arrays.items()}
            self._limits.check(plain)
        return self._library(arrays)


def limited(library: "Library", described: "Manifest") -> "Library":
    """Return a library that checks the limits of its inputs, if it has any."""
    limits = LimitsByShapes(described.programs)
    return LimitedLibrary(library, limits) if limits else library
