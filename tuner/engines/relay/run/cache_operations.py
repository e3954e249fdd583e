"""Kernels that act on the caches of this machine; see :mod:`tuner.engines.runtime.cache_state`."""

from functools import lru_cache
from typing import Any

import tvm
from tvm import te
from tvm.script import tir as T  # noqa: N812  its name in every TVMScript
from tvm.target import Target

from tuner.engines.runtime.cache_state import CacheKernels, CpuCaches


@lru_cache(maxsize=1)
def operations() -> CpuCaches:
    """Return the operations, built once in a process."""
    return CpuCaches(
        CacheKernels(
            tensor=tvm.nd.array,
            view=tvm.nd.from_dlpack,
            read_lines=read_lines,
            rewrite_lines=rewrite_lines,
            evict=tvm.get_global_func("cache_flush_cpu_non_first_arg"),
        )
    )


def read_lines(n_cores: int, n_lines: int, n_words: int) -> Any:
    """Build a kernel in which every core reads the first word of each line of its share."""
    buffer = te.placeholder((n_cores, n_lines, n_words), name="buffer")
    line = te.reduce_axis((0, n_lines), name="line")
    largest = te.compute(
        (n_cores,), lambda core: te.max(buffer[core, line, 0], axis=line), name="largest"
    )
    schedule = te.create_schedule(largest.op)
    schedule[largest].parallel(largest.op.axis[0])
    return tvm.build(schedule, [buffer, largest], target=Target("llvm"))


def rewrite_lines(n_cores: int) -> Any:
    """Build a kernel in which every core writes one word of each cache line of its share.

    It stores each word exclusive-or ``key``: given 0 at run time, no word changes, and no
    compiler can leave the store out.
    """

    @T.prim_func  # type: ignore[untyped-decorator]
    def main(words: T.handle, key: T.int32) -> None:
        n = T.int64()
        buffer = T.match_buffer(words, (n,), "int32")
        for core in T.parallel(n_cores):
            for i in range((n // 16 + n_cores - 1) // n_cores):
                if core * ((n // 16 + n_cores - 1) // n_cores) + i < n // 16:
                    buffer[(core * ((n // 16 + n_cores - 1) // n_cores) + i) * 16] = T.bitwise_xor(
                        buffer[(core * ((n // 16 + n_cores - 1) // n_cores) + i) * 16], key
                    )

    function = main.with_attr("global_symbol", "main")
    return tvm.build(tvm.IRModule({"main": function}), target=Target("llvm"))["main"]
