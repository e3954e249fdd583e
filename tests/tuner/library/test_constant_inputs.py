"""Inputs that are constants of a library may be passed with their values."""

from dataclasses import replace

import numpy as np
import pytest

from tests.tuner.library.small_library import described
from tuner.library.constant_inputs import without_constant_shapes, without_constants
from tuner.library.manifest import InputValue, Manifest


@pytest.fixture
def manifest() -> Manifest:
    """The manifest of a library with three constants, one of which has no elements."""
    values: dict[str, InputValue] = {"sr": 16000, "flag": True, "past": (1, 8, 0)}
    return described(programs=(replace(described().programs[0], values=values),))


def test_constants_are_dropped(manifest: Manifest) -> None:
    """The rest is what the program takes."""
    data = np.zeros((1, 3), np.float32)
    arrays = {
        "data": data,
        "sr": np.array([16000]),
        "flag": np.array(True),
        "past": np.zeros((1, 8, 0), np.float32),
    }

    assert [*without_constants(manifest, arrays)] == ["data"]
    assert [*without_constants(manifest, {"data": data})] == ["data"]
    shapes = {"data": (1, 3), "sr": (16000,), "past": (1, 8, 0), "flag": (True,)}
    assert without_constant_shapes(manifest, shapes) == {"data": (1, 3)}


@pytest.mark.parametrize(
    ("name", "value"), [("sr", [8000]), ("sr", [16000, 16000]), ("flag", [False]), ("past", [[0]])]
)
def test_other_values_are_refused(manifest: Manifest, name: str, value: list[int]) -> None:
    """A library computes nothing else than the model would."""
    with pytest.raises(ValueError, match=f"input '{name}' is a constant of the library, of"):
        without_constants(manifest, {name: np.array(value)})
    with pytest.raises(ValueError, match="input 'sr' is a constant"):
        without_constant_shapes(manifest, {"sr": (8000,)})
