"""Flush of the private caches of the cores between samples.

See :mod:`tuner.engines.relax.cache_flush`, its form for TVM 0.27, for the reason and the sizes.
"""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import te
from tvm.target import Target

# Name under which the time evaluator looks the function up.
FLUSH = "tuner.flush"
_CACHE_LINE_BYTES = 64
_DEFAULT_BYTES = 2 * 2**20


@lru_cache(maxsize=1)
def install(n_bytes: int = 0) -> str:
    """Register the flush of this process, replacing an earlier one; return its name.

    Args:
        n_bytes: Bytes that all cores read together; at least twice their private caches.
    """
    n_cores = len(os.sched_getaffinity(0))
    n_lines = max(2 * _private_cache_bytes(), n_bytes // n_cores) // _CACHE_LINE_BYTES
    kernel = _read_lines(n_cores, n_lines)
    lines = tvm.nd.array(np.zeros((n_cores, n_lines, _CACHE_LINE_BYTES // 4), "float32"))
    result = tvm.nd.empty((n_cores,), "float32")

    def flush(*_arguments: Any) -> None:
        kernel(lines, result)

    tvm._ffi.register_func(FLUSH, flush, override=True)
    return FLUSH


def _read_lines(n_cores: int, n_lines: int) -> Any:
    """Build a kernel in which every core reads one word of each cache line of its share."""
    buffer = te.placeholder((n_cores, n_lines, _CACHE_LINE_BYTES // 4), name="buffer")
    line = te.reduce_axis((0, n_lines), name="line")
    largest = te.compute(
        (n_cores,), lambda core: te.max(buffer[core, line, 0], axis=line), name="largest"
    )
    schedule = te.create_schedule(largest.op)
    schedule[largest].parallel(largest.op.axis[0])
    return tvm.build(schedule, [buffer, largest], target=Target("llvm"))


def _private_cache_bytes() -> int:
    """Return the size of the largest private cache of a core, as Linux reports it."""
    sizes = [_DEFAULT_BYTES]
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            level = int((index / "level").read_text())
            text = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if level == 2 and text.endswith("K"):
            sizes.append(int(text[:-1]) * 1024)
    return max(sizes)
