"""Load libraries of any engine as callables of this process."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from tuner.errors import RequestError
from tuner.library import manifest
from tuner.library.bucketed_library import BucketedLibrary
from tuner.library.constant_inputs import with_constants
from tuner.library.limits import limited
from tuner.library.processors import check_library
from tuner.library.tails import with_tail
from tuner.library.threads import set_threads

Array = np.ndarray[Any, Any]


class Library(Protocol):
    """A compiled network, callable on arrays by input name.

    It may hold several programs, for other shapes of the same inputs; the shapes of a call
    choose one. If it was built for buckets, inputs are padded to the smallest that fits. It
    serves one call at a time, and callers must not overlap.
    """

    @property
    def inputs(self) -> manifest.Inputs:
        """Shape and dtype by input name, of the first program."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, in order."""

    def __call__(
        self, inputs: Mapping[str, Array] | None = None, **named: Array
    ) -> dict[str, Array]:
        """Run the network.

        Args:
            inputs: An array per input name, of the shapes and dtypes of one of the programs. An
                input that is a constant of the library may be left out.
            **named: The same, as keywords.

        Returns:
            An array per output name.

        Raises:
            ValueError: If an input is missing, unknown, of another shape or dtype, or has an index
                outside of what it indexes or a divisor 0, or one that is a constant of the library
                has another value; the message names it.
        """


def load(folder: Path, threads: int | None = None) -> Library:
    """Load a library by the module ``loading`` in the package of the engine that built it.

    Args:
        folder: Folder of the library.
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
    library = with_tail(cast("Library", module.load(folder)), folder, described)
    if described.buckets is None:
        library = limited(library, described)
    else:
        library = BucketedLibrary(library, described.buckets, described.programs)
    return with_constants(library, described)
