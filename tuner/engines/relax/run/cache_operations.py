"""Kernels that act on the caches of this machine; see :mod:`tuner.engines.runtime.cache_state`."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import tvm
from tvm import te
from tvm.script import tirx as T  # noqa: N812  its name in every TVMScript
from tvm.target import Target

from tuner.devices import cpu_caches
from tuner.engines.runtime.cache_state import CacheKernels, CpuCaches


@lru_cache(maxsize=1)
def operations() -> CpuCaches:
    """Return the operations, built once in a process."""
    return CpuCaches(
        CacheKernels(
            tensor=tvm.runtime.tensor,
            view=tvm.runtime.from_dlpack,
            read_lines=read_lines,
            rewrite_lines=rewrite_lines,
            evict=eviction(cpu_caches.n_cores()),
        )
    )


def eviction(n_cores: int) -> Callable[..., None]:
    """Return a function that removes tensors from all caches; see :class:`CacheKernels`.

    TVM's own runs on one core, and waits for each cache line before the next: 5.4 ms for 9 MB of
    weights, where all cores with ``clflushopt`` take 0.4 and leave the same state.
    """
    if not cpu_caches.has_fast_flush():
        slow: Callable[..., None] = tvm.get_global_func("cache_flush_cpu_non_first_arg")
        return slow
    flush = flush_lines(n_cores)

    def evict(_: Any, *tensors: Any) -> None:
        for tensor in tensors:
            n_bytes = math.prod(tensor.shape) * tvm.DataType(str(tensor.dtype)).bits // 8
            if n_bytes:
                flush(tensor._create_view((n_bytes,), "uint8"))

    return evict


def flush_lines(n_cores: int) -> Any:
    """Build a kernel in which every core writes its share of the cache lines back and drops them.

    It takes the bytes of a tensor, for a CPU that has ``clflushopt``.
    """

    @T.prim_func  # type: ignore[untyped-decorator]
    def main(memory: T.handle) -> None:
        n = T.int64()
        buffer = T.match_buffer(memory, (n,), "uint8")
        for core in T.parallel(n_cores):
            for i in range((n + 63) // 64 // n_cores + 1):
                if (i * n_cores + core) * 64 < n:
                    T.evaluate(
                        T.call_llvm_intrin(
                            "void",
                            "llvm.x86.clflushopt",
                            T.address_of(buffer[(i * n_cores + core) * 64]),
                        )
                    )

    function = main.with_attr("global_symbol", "main")
    target = Target({"kind": "llvm", "mattr": ["+clflushopt"]})
    return tvm.tirx.build(tvm.IRModule({"main": function}), target=target)["main"]


def read_lines(n_cores: int, n_lines: int, n_words: int) -> Any:
    """Build a kernel in which every core reads the first word of each line of its share."""
    buffer = te.placeholder((n_cores, n_lines, n_words), name="buffer")
    line = te.reduce_axis((0, n_lines), name="line")
    largest = te.compute(
        (n_cores,), lambda core: te.max(buffer[core, line, 0], axis=line), name="largest"
    )
    schedule = tvm.s_tir.Schedule(te.create_prim_func([buffer, largest]))
    core, _ = schedule.get_loops(schedule.get_sblock("largest"))
    schedule.parallel(core)
    return tvm.tirx.build(schedule.mod, target=Target({"kind": "llvm"}))["main"]


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
    return tvm.tirx.build(tvm.IRModule({"main": function}), target=Target({"kind": "llvm"}))["main"]
