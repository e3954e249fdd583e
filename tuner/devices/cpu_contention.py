"""Signs that something else used the cores of this machine while a kernel ran on them.

The scheduler of Linux accounts the time that a thread could have run but waited for a core
(``schedstat``, in nanoseconds), which shows a rival process down to microseconds. The time that a
hypervisor gave to other virtual machines (``steal`` in ``/proc/stat``) has the resolution of the
clock tick.
"""

import os
import resource
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

# Plain strings: these files are read around every sample, and path objects would take longer.
_TASKS = "/proc/self/task"
_STAT = "/proc/stat"
_STEAL = 8
# A thread of a sample may wait this share of the sample before it counts as disturbed.
_MAX_WAIT_SHARE = 0.02


class Reading(NamedTuple):
    """Counters of this process and machine, which only grow.

    Attributes:
        waited_secs: Time that threads of this process waited for a core.
        n_preempted: Involuntary context switches of this process; 0 where Linux accounts the
            waiting.
        n_stolen: Clock ticks that the hypervisor gave to other machines.
    """

    waited_secs: float
    n_preempted: int
    n_stolen: int

    def is_disturbed_until(self, later: "Reading", secs: float) -> bool:
        """Return whether something else used the cores between two readings.

        Args:
            later: The reading at the end.
            secs: Time that was measured between them.
        """
        return (
            later.waited_secs - self.waited_secs > _MAX_WAIT_SHARE * secs
            or later.n_preempted > self.n_preempted
            or later.n_stolen > self.n_stolen
        )


def read() -> Reading:
    """Return the counters now, in some ten microseconds; zeros on systems that have none."""
    if _accounts_waiting():
        waited = sum(map(_waited_nanosecs, os.listdir(_TASKS)))  # noqa: PTH208
        return Reading(waited / 1e9, 0, _stolen_ticks())
    return Reading(0.0, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw, _stolen_ticks())


@lru_cache(maxsize=1)
def _accounts_waiting() -> bool:
    return Path("/proc/self/schedstat").exists()


def _waited_nanosecs(thread: str) -> int:
    """Return the time that a thread waited; one that has ended waits no longer."""
    try:
        with open(f"{_TASKS}/{thread}/schedstat", "rb", buffering=0) as stream:  # noqa: PTH123
            return int(stream.read().split()[1])
    except (OSError, LookupError):
        return 0


def _stolen_ticks() -> int:
    try:
        with open(_STAT, "rb") as stream:  # noqa: PTH123
            return int(stream.readline().split()[_STEAL])
    except (OSError, LookupError):
        return 0
