"""Libraries of buckets as callables on inputs of any size up to the largest bucket."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tuner.library.arrays import Array
from tuner.library.buckets import Buckets
from tuner.library.limits import limits_at
from tuner.library.wrapper import LibraryWrapper

if TYPE_CHECKING:
    from tuner.library.loading import Library
    from tuner.library.manifest import Program


class BucketedLibrary(LibraryWrapper):
    """A library that runs the smallest bucket that fits, on padded inputs, and cuts the outputs.

    On a GPU it takes the sizes of its buckets only.

    Attributes:
        buckets: The dynamic dimensions and their sizes.
    """

    def __init__(
        self, library: "Library", buckets: Buckets, programs: "tuple[Program, ...]" = ()
    ) -> None:
        super().__init__(library)
        self.buckets = buckets
        self._limits = [
            (
                buckets.sizes_of({name: shape for name, (shape, _) in each.inputs.items()}),
                each.limits,
            )
            for each in programs
        ]

    def run_arrays(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Run the program of the smallest bucket that fits.

        Raises:
            ValueError: If an input cannot be used, or no bucket fits; the message names them.
        """
        if set(arrays) != set(self.inputs) or not all(hasattr(a, "shape") for a in arrays.values()):
            return self._library(arrays)  # which refuses them
        sizes = self.buckets.sizes_of({name: tuple(a.shape) for name, a in arrays.items()})
        fitting = self.buckets.fit(sizes)
        plain = {name: np.asarray(array) for name, array in arrays.items()}
        for limit in limits_at(sizes, self._limits) if self._limits else ():
            limit.check(plain[limit.input])
        if fitting == sizes:
            return self._library(arrays)
        return self.buckets.cut(self._library(self.buckets.pad(plain, fitting)), sizes)
