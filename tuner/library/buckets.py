"""Buckets of a library: the sizes of dynamic dimensions that it has programs for, and padding."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

# The client reads manifests, and runs where NumPy may be missing.
if TYPE_CHECKING:
    from tuner.library.arrays import Array

Shapes = Mapping[str, tuple[int, ...]]
Axes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class BucketedDimension:
    """A dynamic dimension of a model, and the sizes that a library has programs for.

    Attributes:
        sizes: Sizes of the programs, ascending.
        inputs: Axes of the dimension by input name.
        outputs: Axes of the dimension by output name, which are cut after padding.
        min_size: Smallest size that the model itself runs with.
        problem: Reason why inputs are not padded along it; empty if they are.
    """

    name: str
    sizes: tuple[int, ...]
    inputs: Axes
    outputs: Axes = field(default_factory=dict)
    min_size: int = 1
    problem: str = ""

    @property
    def note(self) -> str:
        """The sizes that a library takes, in words."""
        names = _listed(self.sizes)
        if self.problem:
            return f"exactly {names}, because {self.problem}"
        return f"{self.min_size} to {self.sizes[-1]}, padded to {names}"

    def bucket_of(self, size: int) -> int:
        """Return the smallest size of a program that fits inputs of a size.

        Raises:
            ValueError: If there is none; the message names the buckets.
        """
        if size in self.sizes:
            return size
        names = _listed(self.sizes)
        if size > self.sizes[-1]:
            raise ValueError(
                f"dimension {self.name!r} is {size}, beyond the largest bucket; the buckets are "
                f"{', '.join(map(str, self.sizes))}"
            )
        if self.problem:
            raise ValueError(
                f"dimension {self.name!r} is {size}, and must be exactly {names}: inputs are not "
                f"padded, because {self.problem}"
            )
        if size < self.min_size:
            raise ValueError(
                f"dimension {self.name!r} is {size}, and the model takes {self.min_size} or more"
            )
        return next(bucket for bucket in self.sizes if bucket > size)


@dataclass(frozen=True)
class SummedDimension:
    """A dynamic dimension whose size is the sum of others, as that of a mask of old and new keys.

    Attributes:
        parts: Names of the others.
        offset: Number that is added to them.
        inputs: Axes of the dimension by input name.
    """

    parts: tuple[str, ...]
    offset: int
    inputs: Axes

    @property
    def name(self) -> str:
        """The sum in words."""
        return " + ".join([*self.parts, *([str(self.offset)] if self.offset else [])])

    def axes_in(self, shapes: Shapes, sizes: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
        """Yield the input, the axis and the size of each axis of some inputs, if it is known."""
        if all(part in sizes for part in self.parts):
            size = sum(sizes[part] for part in self.parts) + self.offset
            for name, axes in self.inputs.items():
                for axis in axes if name in shapes else ():
                    yield name, axis, size


@dataclass(frozen=True)
class Buckets:
    """The dynamic dimensions of a library with a program for each combination of their sizes.

    Attributes:
        padding: Value of the padding by input name; zero for the others.
        sums: Dimensions that follow from them.
    """

    dimensions: tuple[BucketedDimension, ...]
    padding: Mapping[str, float] = field(default_factory=dict)
    sums: tuple[SummedDimension, ...] = ()

    def notes(self) -> tuple[str, ...]:
        """Describe the sizes that the library takes, a sentence for each dimension."""
        return tuple(f"{dimension.name}: {dimension.note}" for dimension in self.dimensions)

    def names(self) -> dict[tuple[str, int], str]:
        """Name the axes that have no fixed size, by input or output and axis."""
        names = {}
        for dimension in self.dimensions:
            for tensor, axes in (*dimension.inputs.items(), *dimension.outputs.items()):
                names.update(dict.fromkeys(((tensor, axis) for axis in axes), dimension.name))
        for each in self.sums:
            for tensor, axes in each.inputs.items():
                names.update(dict.fromkeys(((tensor, axis) for axis in axes), each.name))
        return names

    def sizes_of(self, shapes: Shapes) -> dict[str, int]:
        """Read the sizes of the dimensions from shapes by input name; some may be missing.

        Raises:
            ValueError: If two inputs disagree, or a shape has too few dimensions.
        """
        sizes = self._own_sizes_of(shapes)
        for each in self.sums:
            for name, axis, size in each.axes_in(shapes, sizes):
                if shapes[name][axis : axis + 1] != (size,):
                    raise ValueError(
                        f"dimension {axis} of input {name!r} is {each.name}, which is {size}, but "
                        f"the input has the shape {shapes[name]}"
                    )
        return sizes

    def _own_sizes_of(self, shapes: Shapes) -> dict[str, int]:
        sizes: dict[str, tuple[str, int]] = {}
        for dimension in self.dimensions:
            for name, axes in dimension.inputs.items():
                for axis in axes if name in shapes else ():
                    if axis >= len(shapes[name]):
                        raise ValueError(f"input {name!r} has too few dimensions: {shapes[name]}")
                    size = shapes[name][axis]
                    other, other_size = sizes.setdefault(dimension.name, (name, size))
                    if size != other_size:
                        raise ValueError(
                            f"inputs {other!r} and {name!r} share the dimension "
                            f"{dimension.name!r}, but have {other_size} and {size}"
                        )
        return {name: size for name, (_, size) in sizes.items()}

    def resized(self, shapes: Shapes, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return shapes by input name with the dimensions at other sizes."""
        resized = {name: list(shape) for name, shape in shapes.items()}
        for dimension in self.dimensions:
            for name, axes in dimension.inputs.items():
                for axis in axes if name in resized and dimension.name in sizes else ():
                    resized[name][axis] = sizes[dimension.name]
        for each in self.sums:
            for name, axis, size in each.axes_in(shapes, sizes):
                resized[name][axis] = size
        return {name: tuple(shape) for name, shape in resized.items()}

    def fit(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the smallest buckets for sizes by dimension.

        Raises:
            ValueError: If there is none; the message names the buckets.
        """
        return {
            dimension.name: dimension.bucket_of(sizes[dimension.name])
            for dimension in self.dimensions
            if dimension.name in sizes
        }

    def pad(self, inputs: "Mapping[str, Array]", sizes: Mapping[str, int]) -> "dict[str, Array]":
        """Pad arrays by input name to the sizes of buckets; copy only arrays that do not fit."""
        shapes = self.resized({name: array.shape for name, array in inputs.items()}, sizes)
        return {
            name: pad(array, shapes[name], self.padding.get(name, 0.0))
            for name, array in inputs.items()
        }

    def cut(self, outputs: "Mapping[str, Array]", sizes: Mapping[str, int]) -> "dict[str, Array]":
        """Cut outputs of padded inputs back to the sizes of the inputs."""
        import numpy as np

        cut = dict(outputs)
        for dimension in self.dimensions:
            for name, axes in dimension.outputs.items():
                for axis in axes:
                    kept = (*[slice(None)] * axis, slice(sizes[dimension.name]))
                    cut[name] = np.ascontiguousarray(cut[name][kept])
        return cut


def pad(array: "Array", shape: tuple[int, ...], value: float) -> "Array":
    """Return an array as the start of a larger one that is filled with a value."""
    if array.shape == shape:
        return array
    import numpy as np

    padded: Array = np.full(shape, value, array.dtype)
    padded[tuple(map(slice, array.shape))] = array
    return padded


def _listed(sizes: tuple[int, ...]) -> str:
    *first, last = map(str, sizes)
    return f"{', '.join(first)} or {last}" if first else last
