"""Load libraries of any engine as callables of this process."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from tuner.errors import RequestError
from tuner.library import manifest
from tuner.library.arrays import Array
from tuner.library.buckets import Buckets
from tuner.library.constant_inputs import with_constants
from tuner.library.limits import limited, limits_at
from tuner.library.processors import check_library
from tuner.library.tails import with_tail
from tuner.library.threads import set_threads
from tuner.library.wrapper import LibraryWrapper

if TYPE_CHECKING:
    from tuner.library.manifest import Program


class Library(Protocol):
    """A compiled network, callable on arrays by input name.

    It may hold several programs, for other shapes of the same inputs; the shapes of a call
    choose one. If it was built for buckets, inputs are padded to the smallest that fits. On a
    CPU it serves one call at a time, and callers must not overlap; on a GPU any thread may call it.
    """

    @property
    def inputs(self) -> manifest.Inputs:
        """Shape and dtype by input name, of the first program."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, in order."""

    def __call__(
        self, inputs: Mapping[str, Array] | Array | None = None, **named: Array
    ) -> dict[str, Array]:
        """Run the network.

        Args:
            inputs: An array per input name, of the shapes and dtypes of one of the programs. An
                input that is a constant of the library may be left out. A library of one input
                takes its array alone.
            **named: The same, as keywords.

        Returns:
            An array per output name.

        Raises:
            ValueError: If an input is missing, unknown, of another shape or dtype, or has an index
                outside of what it indexes or a divisor 0, or one that is a constant of the library
                has another value; the message names it.
        """


class DeviceLibrary(Library, Protocol):
    """A library that also runs on arrays of a GPU."""

    def run_on_device(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any] | None = None,
        stream: Any = None,
    ) -> dict[str, Any]:
        """Run the network on arrays of the GPU that the library is for, without a copy.

        The run is queued in a stream, and the call does not wait for it. Inputs must not change,
        and their memory must not be used otherwise, before the work that is queued then has begun.
        If the caller captures the stream, the library, the inputs and the outputs must be kept for
        as long as the graph is replayed.

        Args:
            inputs: By input name an array of one of the programs' shapes and dtypes with
                ``__dlpack__``, as those of torch, CuPy and JAX; contiguous, and aligned to 64
                bytes. Values are not checked: an index beyond its limits reads the last position.
            outputs: Arrays to write, by output name, which share no memory with others; the rest
                is allocated, and allocated again only while callers hold it.
            stream: The stream: a handle, or an object of torch or CuPy. None for the current one
                of the library of the inputs, if it is torch or CuPy, or else the legacy stream.

        Returns:
            By output name the given array, or an array with ``__dlpack__`` and ``shape``. A stream
            of a consumer that reads it by ``from_dlpack`` waits for the run.

        Raises:
            RequestError: If the library runs on a CPU, or a part of it does.
            ValueError: If an array cannot be used; the message names it.
            WorkError: If CUDA fails, or the process was forked after the library was loaded.
        """


def load(folder: Path, threads: int | None = None) -> DeviceLibrary:
    """Load a library by the module ``loading`` in the package of the engine that built it.

    Args:
        threads: Threads that run it; see :func:`tuner.library.threads.set_threads`.

    Raises:
        TargetError: If this machine cannot run its code.
        RequestError: If there is no library, it is damaged, its engine cannot load here, or the
            number of threads is not positive.
    """
    described = manifest.read(folder)
    check_library(described, folder)
    set_threads(described, threads)
    engine = described.engine
    loader = ".".join([*engine.split(".")[:-1], "loading"])
    try:
        module = import_module(loader)
    except ImportError as error:
        raise RequestError(
            f"{folder} was built by {engine}, which cannot load it here: {error}"
        ) from error
    library = with_tail(module.load(folder), folder, described)
    if described.buckets is None:
        library = limited(library, described)
    else:
        library = BucketedLibrary(library, described.buckets, described.programs)
    return cast("DeviceLibrary", with_constants(library, described))


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
