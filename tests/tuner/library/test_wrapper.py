"""Libraries are called with arrays by name, and those of one input with the array alone."""

from collections.abc import Mapping

import numpy as np
import pytest

from tests.tuner.networks.models import Array
from tuner.library.wrapper import LibraryWrapper, NamedLibrary


class Sum(NamedLibrary):
    """A library that adds its inputs."""

    def __init__(self, *names: str) -> None:
        self.inputs = dict.fromkeys(names, ((2, 3), "float32"))
        self.outputs = ("y", "z")

    def run_arrays(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Add them."""
        return {"y": sum(arrays[name] for name in self.inputs)}  # type: ignore[dict-item]


class Doubled(LibraryWrapper):
    """Doubles what a library returns."""

    def run_arrays(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Double it."""
        return {name: 2 * array for name, array in self._library(arrays).items()}


ONE: Array = np.ones((), np.float32)


def test_a_library_of_one_input_takes_its_array() -> None:
    """By name, by keyword, or alone, also through a wrapper."""
    for library in (Sum("a"), Doubled(Sum("a"))):
        expected = library({"a": ONE})["y"]

        assert library(ONE)["y"] == expected
        assert library(a=ONE)["y"] == expected


def test_a_library_of_several_inputs_takes_names_alone() -> None:
    """The message lists them."""
    library = Sum("a", "b")

    assert library({"a": ONE}, b=ONE)["y"] == 2
    with pytest.raises(ValueError, match="name the array of each input: a, b"):
        library(ONE)
    with pytest.raises(ValueError, match="name the array of each input: a"):
        Sum("a")(ONE, b=ONE)


def test_a_library_says_what_it_is() -> None:
    """Its inputs with their types and shapes, and its outputs."""
    assert repr(Doubled(Sum("a", "b"))) == (
        "<library (a: float32[2, 3], b: float32[2, 3]) -> y, z>"
    )
