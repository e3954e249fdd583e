"""Limits of input values that callers of a library may not leave: indices and divisors."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.library.arrays import Array
    from tuner.library.loading import Library
    from tuner.library.manifest import Inputs, Manifest, Program

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

    def check(self, array: "Array") -> None:
        """Check an input.

        Raises:
            ValueError: If it leaves the limit; the message names it.
        """
        values = array[tuple(slice(*each) for each in self.part)] if self.part else array
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


def parse(raw: Iterable[Mapping[str, Any]]) -> tuple[InputLimit, ...]:
    """Return limits as they are after a passage through JSON."""
    return tuple(InputLimit(**{**each, "part": tuple(map(tuple, each["part"]))}) for each in raw)


class LimitsByShapes:
    """Limits of the inputs of each program of a library."""

    def __init__(self, programs: Iterable["Program"] = ()) -> None:
        self._programs = [(program.inputs, program.limits) for program in programs]

    def __bool__(self) -> bool:
        return any(limits for _, limits in self._programs)

    def check(self, arrays: Mapping[str, "Array"], shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Check the inputs of the program that takes inputs of some shapes.

        Args:
            arrays: An array for each input, before it is padded.
            shapes: Shape of each input after that.

        Raises:
            ValueError: If an input leaves a limit; the message names it.
        """
        for inputs, limits in self._programs:
            if all(shapes[name] == shape for name, (shape, _) in inputs.items()):
                for limit in limits:
                    limit.check(arrays[limit.input])
                return


class LimitedLibrary:
    """A library that refuses inputs beyond their limits.

    Attributes:
        inputs: Shape and dtype by input name, of the first program.
        outputs: Names of the outputs, in order.
        programs: Programs of the library.
    """

    def __init__(self, library: "Library", limits: LimitsByShapes) -> None:
        self.inputs: Inputs = library.inputs
        self.outputs = library.outputs
        self.programs: Any = getattr(library, "programs", ())
        self._library = library
        self._limits = limits

    def __call__(
        self, inputs: Mapping[str, "Array"] | None = None, **named: "Array"
    ) -> dict[str, "Array"]:
        """Run the network; see :class:`tuner.library.loading.Library`.

        Raises:
            ValueError: If an input cannot be used; the message names it.
        """
        import numpy as np  # clients read manifests without it

        arrays = {**(inputs or {}), **named}
        # The library refuses others.
        if set(arrays) == set(self.inputs) and all(hasattr(a, "shape") for a in arrays.values()):
            plain = {name: np.asarray(array) for name, array in arrays.items()}
            self._limits.check(plain, {name: array.shape for name, array in plain.items()})
        return self._library(arrays)


def limited(library: "Library", described: "Manifest") -> "Library":
    """Return a library that checks the limits of its inputs, if it has any."""
    limits = LimitsByShapes(described.programs)
    return LimitedLibrary(library, limits) if limits else library
