"""The toy engine on a device whose peaks are known: no program beats the fastest of its task.

Its tasks take from once to twice their roof. Workers import this module by name.
"""

import os
import time

from tests.engines.toy import (
    build,
    compile_subgraph,
    describe_target,
    extract,
    link_network,
    profile,
    propose,
    reference,
    run,
    run_interleaved,
    run_network,
)
from tuner.engines.base import DevicePeaks

__all__ = [
    "build",
    "compile_subgraph",
    "describe_target",
    "extract",
    "link_network",
    "profile",
    "propose",
    "reference",
    "run",
    "run_interleaved",
    "run_network",
]

NAME = "tests.engines.toy_peaks"


def measure_peaks(_target: str) -> DevicePeaks:
    """Return the operations per second by which toy tasks count theirs, after TOY_PEAKS_SECS."""
    time.sleep(float(os.environ.get("TOY_PEAKS_SECS", "0")))
    return DevicePeaks({"float32": 1e9}, 2**20, 1e12, 1e11, 10.0)
