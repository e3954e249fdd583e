"""Flush of the private caches of the cores between samples.

In a network, the weights and most of the input of a kernel are outside the private
caches, because all other kernels ran since its last call. Timed in a loop on the
same arguments, a kernel has them in those caches, and the sum over a network was a
fifth too low. Flushing to memory (TVM's ``cache_flush_cpu_non_first_arg``) errs the
other way, by a third. Reading a buffer of twice the private caches on every core
before each sample leaves the arguments in the shared cache, and the sum was right
within 5 % (see docs/measuring.md).

A network of tens of megabytes leaves nothing in the shared cache either. In the final,
which knows the size of the network, the buffer is larger than that.
"""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import te
from tvm.target import Target

_CACHE_LINE_BYTES = 64
_DEFAULT_BYTES = 2 * 2**20


# Name under which the time evaluator looks the function up.
FLUSH = "tuner.flush"


@lru_cache(maxsize=1)
def install(n_bytes: int = 0) -> str:
    """Register the flush of this process, replacing an earlier one; return its name.

    Args:
        n_bytes: Bytes that all cores read together; at least twice their private caches.
    """
    n_cores = len(os.sched_getaffinity(0))
    n_lines = max(2 * _private_cache_bytes(), n_bytes // n_cores) // _CACHE_LINE_BYTES
    kernel = _read_lines(n_cores, n_lines)
    lines = tvm.runtime.tensor(np.zeros((n_cores, n_lines, _CACHE_LINE_BYTES // 4), "float32"))
    result = tvm.runtime.empty((n_cores,), "float32")

    def flush(*_arguments: Any) -> None:
        kernel(lines, result)

    tvm_ffi.register_global_func(FLUSH, flush, override=True)
    return FLUSH


def _read_lines(n_cores: int, n_lines: int) -> Any:
    """Build a kernel in which every core reads one word of each cache line of its share."""
    buffer = te.placeholder((n_cores, n_lines, _CACHE_LINE_BYTES // 4), name="buffer")
    line = te.reduce_axis((0, n_lines), name="line")
    largest = te.compute(
        (n_cores,), lambda core: te.max(buffer[core, line, 0], axis=line), name="largest"
    )
    schedule = tvm.s_tir.Schedule(te.create_prim_func([buffer, largest]))
    core, _ = schedule.get_loops(schedule.get_sblock("largest"))
    schedule.parallel(core)
    return tvm.tirx.build(schedule.mod, target=Target({"kind": "llvm"}))["main"]


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
