"""Worker function that times a library as its callers do, with its tail."""

import time
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.library import manifest
from tuner.library.arrays import read_arrays, write_arrays
from tuner.library.limits import limited
from tuner.library.tails import with_tail
from tuner.library.threads import set_threads

if TYPE_CHECKING:
    from tuner.library.loading import Library

_WARM_UPS = 2


def run_library(folder: str, inputs: str, outputs: str, n_runs: int) -> tuple[float, ...]:
    """Run a library and time it, copies of its inputs and outputs included.

    Args:
        folder: Folder of the library, which is loaded once in a process.
        inputs: File with an array for each input.
        outputs: File for the outputs; empty for none.
        n_runs: Runs after a warm-up.

    Returns:
        Seconds of each run.
    """
    library, arrays = _loaded(folder), read_arrays(inputs)
    for _ in range(_WARM_UPS):
        returned = library(arrays)
    if outputs:
        write_arrays(outputs, returned)
    secs = []
    for _ in range(n_runs):
        started = time.perf_counter()
        library(arrays)
        secs.append(time.perf_counter() - started)
    return tuple(secs)


@lru_cache(maxsize=1)
def _loaded(folder: str) -> "Library":
    """Load a library into this process, which is one of the engine, by its module ``network``."""
    path = Path(folder)
    described = manifest.read(path)
    set_threads(described, None)
    network = import_module(".".join([*described.engine.split(".")[:-1], "network"]))
    return limited(with_tail(network.Library(path), path, described), described)
