"""Operations on the caches of this machine; see :mod:`tuner.engines.cache_state`."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
from tvm import te
from tvm.script import tirx as T  # noqa: N812  its name in every TVMScript
from tvm.target import Target

from tuner.devices import cpu_caches
from tuner.engines.cache_state import SWEEPS, untouched_pages

_LINE_BYTES = 64
_WORDS = _LINE_BYTES // 4


class Operations:
    """See :class:`tuner.engines.cache_state.CacheOperations`."""

    def __init__(self) -> None:
        n_cores = cpu_caches.n_cores()
        n_lines = SWEEPS * cpu_caches.private_bytes() // _LINE_BYTES
        self._read_lines = read_lines(n_cores, n_lines, _WORDS)
        self._lines = tvm.runtime.tensor(np.zeros((n_cores, n_lines, _WORDS), "float32"))
        self._largest = tvm.runtime.empty((n_cores,), "float32")
        self._rewrite_lines = rewrite_lines(n_cores)
        self._evict = tvm.get_global_func("cache_flush_cpu_non_first_arg")

    def sweep(self, n_pages: int) -> None:
        """Read a word of every page of one buffer, and of every cache line of another."""
        if n_pages:
            read_pages, pages = _page_reader(n_pages)
            read_pages(pages, self._largest)
        self._read_lines(self._lines, self._largest)

    def evict(self, tensors: Sequence[Any]) -> None:
        """Remove tensors from all caches by TVM's instructions for this machine."""
        self._evict(self._largest, *tensors)

    def rewrite(self, tensor: Any) -> None:
        """Write one word of each whole cache line of a tensor; every core has its share."""
        n_words = math.prod(tensor.shape) * np.dtype(str(tensor.dtype)).itemsize // 4
        if n_words >= _WORDS:
            self._rewrite_lines(tensor._create_view((n_words,), "int32"), 0)


@lru_cache(maxsize=1)
def operations() -> Operations:
    """Return the operations, built once in a process."""
    return Operations()


@lru_cache(maxsize=4)
def _page_reader(n_pages: int) -> tuple[Any, Any]:
    """Return a kernel in which every core reads a number of pages, and the pages."""
    n_cores = cpu_caches.n_cores()
    pages = untouched_pages(n_cores, n_pages).view("float32")
    return read_lines(n_cores, n_pages, pages.shape[2]), tvm.runtime.from_dlpack(pages)


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
