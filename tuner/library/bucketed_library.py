"""Libraries of buckets as callables on inputs of any size up to the largest bucket."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tuner.library.arrays import Array
from tuner.library.buckets import Buckets
from tuner.library.limits import limits_at

if TYPE_CHECKING:
    from tuner.library.loading import Library
    from tuner.library.manifest import Inputs, Program


class BucketedLibrary:
    """A library that runs the smallest bucket that fits, on padded inputs, and cuts the outputs.

    Attributes:
        inputs: Shape and dtype by input name, of the first program.
        outputs: Names of the outputs, in order.
        buckets: The dynamic dimensions and their sizes.
    """

    def __init__(
        self, library: "Library", buckets: Buckets, programs: "tuple[Program, ...]" = ()
    ) -> None:
        self.buckets = buckets
        self._limits = [
            (
                buckets.sizes_of({name: shape for name, (shape, _) in each.inputs.items()}),
                each.limits,
            )
            for each in programs
        ]
        self.inputs: Inputs = library.inputs
        self.outputs = library.outputs
        self._library = library

    def __call__(
        self, inputs: Mapping[str, Array] | None = None, **named: Array
    ) -> dict[str, Array]:
        """Run the network; see :class:`tuner.library.loading.Library`.

        Raises:
            ValueError: If an input cannot be used, or no bucket fits; the message names them.
        """
        arrays = {**(inputs or {}), **named}
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
