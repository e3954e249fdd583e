"""Libraries for buckets: the smallest that fits runs, on padded inputs, and outputs are cut."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tuner.library.small_library import described
from tuner.library import manifest
from tuner.library.buckets import BucketedDimension, Buckets, SummedDimension
from tuner.library.loading import BucketedLibrary
from tuner.library.wrapper import NamedLibrary

Array = np.ndarray[Any, Any]
BATCH = BucketedDimension("batch", (1, 4), {"ids": (0,), "mask": (0,)}, {"y": (0,)})
LENGTH = BucketedDimension("length", (4, 8), {"ids": (1,), "mask": (1,)}, {"y": (1,)}, min_size=2)
BUCKETS = Buckets((BATCH, LENGTH), {"mask": 1.0})


class Echo(NamedLibrary):
    """A library that returns its ids, and remembers what it was called with."""

    def __init__(self) -> None:
        self.inputs = {"ids": ((1, 4), "int64"), "mask": ((1, 4), "int64")}
        self.outputs = ("y",)
        self.arrays: dict[str, Array] = {}

    def run_arrays(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Refuse what libraries refuse."""
        self.arrays = dict(arrays)
        if set(self.arrays) != set(self.inputs):
            raise ValueError("inputs are ids, mask")
        return {"y": self.arrays["ids"]}


def arrays(batch: int, length: int) -> dict[str, Array]:
    """Draw inputs without zeros, and a mask that marks nothing."""
    ids = np.random.default_rng(0).integers(1, 9, (batch, length))
    return {"ids": ids, "mask": np.zeros((batch, length), np.int64)}


@pytest.mark.parametrize(
    ("size", "bucket"), [((1, 4), (1, 4)), ((1, 3), (1, 4)), ((3, 5), (4, 8)), ((4, 2), (4, 4))]
)
def test_the_smallest_bucket_that_fits_runs(size: tuple[int, int], bucket: tuple[int, int]) -> None:
    """Ids are padded with 0, the mask with its value, and the output has the size of the input."""
    echo, given = Echo(), arrays(*size)

    (output,) = BucketedLibrary(echo, BUCKETS)(None, **given).values()

    assert echo.arrays["ids"].shape == echo.arrays["mask"].shape == bucket
    assert echo.arrays["ids"].sum() == given["ids"].sum()
    assert echo.arrays["mask"].sum() == np.prod(bucket) - np.prod(size)
    np.testing.assert_array_equal(output, given["ids"])


def test_inputs_of_a_bucket_are_not_copied() -> None:
    """Exact sizes cost nothing."""
    echo, given = Echo(), arrays(4, 8)

    BucketedLibrary(echo, BUCKETS)(given)

    assert echo.arrays["ids"] is given["ids"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (arrays(5, 4), "dimension 'batch' is 5, beyond the largest bucket; the buckets are 1, 4"),
        (arrays(0, 4), "dimension 'batch' is 0, and the model takes 1 or more"),
        (arrays(1, 1), "dimension 'length' is 1, and the model takes 2 or more"),
        ({**arrays(1, 4), "mask": np.zeros((2, 4))}, "'ids' and 'mask' share the dimension"),
        ({**arrays(1, 4), "mask": np.zeros(4)}, "share|too few dimensions"),
        ({"ids": np.zeros((1, 4))}, "inputs are ids, mask"),
        ({**arrays(1, 4), "more": np.zeros(1)}, "inputs are ids, mask"),
    ],
)
def test_other_inputs_are_refused(given: dict[str, Array], problem: str) -> None:
    """The message names the buckets, or what is wrong with the inputs."""
    with pytest.raises(ValueError, match=problem):
        BucketedLibrary(Echo(), BUCKETS)(given)


def test_a_dimension_that_is_not_padded_takes_exact_sizes() -> None:
    """The error gives the reason that the trials found."""
    exact = Buckets((BucketedDimension("batch", (1, 4), {"ids": (0,)}, problem="'y' changes"),))
    library = BucketedLibrary(Echo(), exact)

    assert library(arrays(4, 4))["y"].shape == (4, 4)
    with pytest.raises(ValueError, match=r"must be exactly 1 or 4: .* because 'y' changes"):
        library(arrays(3, 4))
    assert exact.notes() == ("batch: exactly 1 or 4, because 'y' changes",)


def test_a_sum_follows_from_its_parts() -> None:
    """Its axes are padded to the sum of the buckets, and must have the sum of the sizes."""
    total = SummedDimension(("batch", "length"), 1, {"total": (0,)})
    buckets = Buckets((BATCH, LENGTH), {}, (total,))
    given = {**arrays(3, 5), "total": np.ones(9, np.int64)}
    sizes = buckets.sizes_of({name: array.shape for name, array in given.items()})

    padded = buckets.pad(given, buckets.fit(sizes))

    assert padded["ids"].shape == (4, 8)
    assert padded["total"].tolist() == [1] * 9 + [0] * 4
    with pytest.raises(ValueError, match=r"'total' is batch \+ length \+ 1, which is 9"):
        buckets.sizes_of({"ids": (3, 5), "total": (8,)})


def test_the_manifest_keeps_the_buckets(tmp_path: Path) -> None:
    """Written and read again they are equal; a manifest without them reads as before."""
    for sums in ((), (SummedDimension(("batch", "length"), 1, {"total": (0,)}),)):
        buckets = replace(BUCKETS, sums=sums)
        manifest.write(tmp_path, described(buckets=buckets))
        assert manifest.read(tmp_path).buckets == buckets

    manifest.write(tmp_path, described())
    assert manifest.read(tmp_path).buckets is None
