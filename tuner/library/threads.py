"""Threads that run the libraries of a process."""

import os
from dataclasses import dataclass

from tuner.errors import RequestError
from tuner.library.manifest import Manifest

#: Environment variable from which TVM's runtime takes the number of threads.
VARIABLE = "TVM_NUM_THREADS"


@dataclass
class _Choices:
    """Choices of this process: of its user, of callers, and the default so far."""

    variable: str | None = None
    argument: int | None = None
    default: int = 1


_choices = _Choices()


def set_threads(described: Manifest, n_threads: int | None) -> None:
    """Set the number of threads before a library runs.

    TVM would use half of the cores, as if two threads shared each. Every thread of the caller that
    runs libraries has threads of its own, whose number is that at its first call.

    Args:
        described: Manifest of the library. By default it gets as many threads as it was tuned
            with, at most the cores that this process may use.
        n_threads: Number of threads; None for that of an earlier call, or of the variable if it
            was set, or else for the default.

    Raises:
        RequestError: If the number is not positive.
    """
    if n_threads is not None and n_threads < 1:
        raise RequestError(f"threads must be at least 1, got {n_threads}")
    if _choices.variable is None:
        _choices.variable = os.environ.get(VARIABLE, "")
    _choices.argument = n_threads or _choices.argument
    n_tuned, n_cores = described.device.get("n_cores"), len(os.sched_getaffinity(0))
    default = min(n_tuned, n_cores) if isinstance(n_tuned, int) and n_tuned > 0 else n_cores
    # Libraries that were tuned with fewer threads may be loaded beside this one.
    _choices.default = max(default, _choices.default)
    os.environ[VARIABLE] = str(_choices.argument or _choices.variable or _choices.default)
