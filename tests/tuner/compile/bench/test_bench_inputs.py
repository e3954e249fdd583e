"""Inputs of a benchmark: drawn, or read from a file of the user."""

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.tuner.library.small_library import described
from tuner.compile.bench.bench_model import choose_program, draw_inputs, read_inputs
from tuner.errors import RequestError
from tuner.library.arrays import Array, write_arrays
from tuner.library.manifest import Manifest, Program
from tuner.networks.base import ValueRange


@pytest.fixture
def library() -> Manifest:
    """Return the manifest of a library for two lengths."""

    def program(length: int) -> Program:
        inputs = {"ids": ((1, length), "int64"), "scale": ((1,), "float16")}
        return Program(f"main_{length}", f"hash {length}", inputs, (), {})

    return described(programs=(program(8), program(16)))


def arrays(length: int) -> dict[str, Array]:
    """Return inputs for one length."""
    return {"ids": np.zeros((1, length), "int64"), "scale": np.ones(1, "float16")}


def test_every_dtype_is_drawn() -> None:
    """Drawn inputs have the declared dtype and shape, and the same seed gives the same ones."""
    names = ("float32", "float16", "bfloat16", "int64", "uint8", "bool")
    declared = {name: ((2, 3), name) for name in names}

    drawn = draw_inputs(declared, 1)

    for name, array in drawn.items():
        assert str(array.dtype) == name
        assert array.shape == (2, 3)
        np.testing.assert_array_equal(array, draw_inputs(declared, 1)[name])


def test_range_is_drawn_whole() -> None:
    """Both ends occur, and nothing beyond them."""
    drawn = draw_inputs({"ids": ((1000,), "int32")}, 0, {"ids": ValueRange(0, 29, "")})["ids"]

    assert (drawn.min(), drawn.max()) == (0, 29)
    assert drawn.dtype == np.int32


@pytest.mark.parametrize("name", ["file", "allow_pickle", "a/b:0", "x"])
def test_any_name_is_stored(tmp_path: Path, name: str) -> None:
    """An input may have a name that numpy.savez takes for its own."""
    stored = {name: np.arange(3), "half": np.ones(2, ml_dtypes.bfloat16)}

    write_arrays(tmp_path / "inputs.npz", stored)

    read = read_inputs(tmp_path / "inputs.npz")
    assert list(read) == list(stored)
    for key, array in stored.items():
        assert read[key].dtype == array.dtype
        np.testing.assert_array_equal(read[key], array)


def write_text(path: Path) -> None:
    """Write something else."""
    path.write_text("no arrays")


def write_one(path: Path) -> None:
    """Write an array without a name."""
    with path.open("wb") as stream:
        np.save(stream, np.zeros(3))


def write_objects(path: Path) -> None:
    """Write an array whose reading would run code."""
    np.savez(path, x=np.array([{}], dtype=object))


@pytest.mark.parametrize("write", [write_text, write_one, write_objects, Path.mkdir, None])
def test_bad_file_is_one_line(tmp_path: Path, write: Callable[[Path], None] | None) -> None:
    """The message names the file."""
    path = tmp_path / "inputs.npz"
    if write is not None:
        write(path)

    with pytest.raises(RequestError, match=r"inputs\.npz"):
        read_inputs(path)


def test_inputs_choose_the_program(library: Manifest) -> None:
    """Shapes or arrays choose a program; without them, it is the first."""
    first, second = library.programs

    assert choose_program(library, {}, None) is first
    assert choose_program(library, {"ids": (1, 16)}, None) is second
    assert choose_program(library, {}, arrays(16)) is second


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ids": arrays(8)["ids"]}, ("'scale'", "missing")),
        ({**arrays(8), "mask": np.ones(1)}, ("'mask'", "ids, scale")),
        (arrays(12), (r"ids \[1, 8\]", r"ids \[1, 16\]", r"ids \[1, 12\]")),
        ({**arrays(8), "ids": np.zeros((1, 8), "int32")}, ("'ids'", "int64", "int32")),
    ],
    ids=["missing", "unknown", "shape", "dtype"],
)
def test_wrong_inputs_are_refused(
    library: Manifest, given: dict[str, Array], words: tuple[str, ...]
) -> None:
    """The message says what the library takes."""
    for word in words:
        with pytest.raises(RequestError, match=word):
            choose_program(library, {}, given)


def test_shape_of_no_program_is_refused(library: Manifest) -> None:
    """The same for shapes alone."""
    with pytest.raises(RequestError, match=r"ids \[1, 12\]"):
        choose_program(library, {"ids": (1, 12)}, None)
