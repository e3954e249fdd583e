"""Inputs of a model that are constants of its library, which callers may pass all the same."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tuner.library.arrays import Array
from tuner.library.wrapper import LibraryWrapper

if TYPE_CHECKING:
    from tuner.library.loading import Library
    from tuner.library.manifest import InputValue, Manifest

T = TypeVar("T")


class LibraryOfConstants(LibraryWrapper):
    """A library that takes the inputs that are its constants too, if they have their values."""

    def __init__(self, library: "Library", described: "Manifest") -> None:
        super().__init__(library)
        self._described = described

    def run_arrays(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Run the network on the inputs that are not constants.

        Raises:
            ValueError: If an input that is a constant has another value.
        """
        return self._library(without_constants(self._described, arrays))


def with_constants(library: "Library", described: "Manifest") -> "Library":
    """Return a library that takes inputs that are constants, if it has any."""
    has_constants = any(program.values for program in described.programs)
    return LibraryOfConstants(library, described) if has_constants else library


def without_constants(described: "Manifest", arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays of inputs that are not constants of a library.

    Raises:
        ValueError: If one that is a constant has another value.
    """
    return _kept(described, arrays, lambda array, value: _has_value(np.asarray(array), value))


def without_constant_shapes(
    described: "Manifest", shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of inputs that are not constants; a number instead of one is a value.

    Raises:
        ValueError: If one that is a constant has another value.
    """
    return _kept(described, shapes, lambda shape, value: shape in (value, (value,)))


def _kept(
    described: "Manifest", given: Mapping[str, T], has_value: Callable[[T, "InputValue"], bool]
) -> dict[str, T]:
    kept = dict(given)
    # The constants of all programs have the same names.
    for name in described.programs[0].values.keys() & kept.keys():
        values = [program.values[name] for program in described.programs]
        if not any(has_value(kept[name], value) for value in values):
            raise ValueError(
                f"input {name!r} is a constant of the library, {_shown(values[0])}: build the "
                "library for another one"
            )
        del kept[name]
    return kept


def _has_value(array: Array, value: "InputValue") -> bool:
    if isinstance(value, tuple):
        return bool(array.shape == value)
    return array.size == 1 and bool(array.reshape(-1)[0] == value)


def _shown(value: "InputValue") -> str:
    if isinstance(value, tuple):
        return f"of shape {value}"
    return f"of the value {str(value).lower()}"
