"""Threads that run the libraries of a process."""

import os

from tuner.errors import RequestError
from tuner.library.manifest import Manifest

#: Environment variable from which TVM's runtime takes the number of threads.
VARIABLE = "TVM_NUM_THREADS"
_chosen = ""


def set_threads(described: Manifest, n_threads: int | None) -> None:
    """Set the number of threads before a library runs.

    TVM would use half of the cores, as if two threads shared each. Every thread of the caller that
    runs libraries has threads of its own, whose number is that at its first call.

    Args:
        described: Manifest of the library. By default it gets as many threads as it was tuned
            with, at most the cores that this process may use.
        n_threads: Number of threads; None for the default, or for the variable if it is set.

    Raises:
        RequestError: If the number is not positive.
    """
    global _chosen  # noqa: PLW0603  the number is a state of the process, like the variable
    if n_threads is not None and n_threads < 1:
        raise RequestError(f"threads must be at least 1, got {n_threads}")
    given = os.environ.get(VARIABLE, "")
    if n_threads is None and given and given != _chosen:
        return
    n_tuned, n_cores = described.device.get("n_cores"), len(os.sched_getaffinity(0))
    default = min(n_tuned, n_cores) if isinstance(n_tuned, int) and n_tuned > 0 else n_cores
    # Libraries that were tuned with fewer threads may be loaded beside this one.
    _chosen = str(n_threads or max(default, int(_chosen or 1)))
    os.environ[VARIABLE] = _chosen
