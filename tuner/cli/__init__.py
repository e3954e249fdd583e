"""The command line."""

import os
import time
from pathlib import Path


def _started() -> float:
    """Return the time at which this process began, by the monotonic clock."""
    now = time.monotonic()
    try:
        # The name in parentheses may hold anything; the start is in ticks since the boot.
        ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return now
    return now - max(age, 0.0)


#: Time at which the process began, by the monotonic clock.
STARTED = _started()
