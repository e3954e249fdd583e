"""Threads that run a library."""

import os
from functools import lru_cache

from tuner.errors import RequestError
from tuner.library.manifest import Manifest

#: Environment variable from which libraries, and TVM's runtime, take the number of threads.
VARIABLE = "TVM_NUM_THREADS"


def set_threads(described: Manifest, n_threads: int | None) -> None:
    """Set the number of threads of a library before it is loaded.

    It keeps that number, also while another is loaded with more or fewer. Callers that run several
    libraries, or one that each loaded, at the same time have threads of their own.

    Args:
        described: Manifest of the library. By default it gets as many threads as it was tuned
            with, at most the cores that this process may use.
        n_threads: Number of threads; None for that of the variable if the user of the process set
            it, or else for the default.

    Raises:
        RequestError: If the number is not positive.
    """
    if n_threads is not None and n_threads < 1:
        raise RequestError(f"threads must be at least 1, got {n_threads}")
    user = _of_the_user()
    n_tuned, n_cores = described.device.get("n_cores"), len(os.sched_getaffinity(0))
    default = min(n_tuned, n_cores) if isinstance(n_tuned, int) and n_tuned > 0 else n_cores
    os.environ[VARIABLE] = str(n_threads or user or default)


@lru_cache(maxsize=1)
def _of_the_user() -> str:
    """Return what the variable was before this module set it; empty if it was not set."""
    return os.environ.get(VARIABLE, "")
