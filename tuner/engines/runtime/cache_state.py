"""State of the caches in which a kernel of a CPU is timed: that in which its network calls it.

The other kernels of a network run between two calls of one. They push all that it reads out of the
private caches of the cores. Its weights stay in the shared cache, unless the weights of the
network are larger than that, or others use the cache and have replaced them by then; then they are
in memory. Its other inputs were written by the kernels
before it, the last one right before, by all cores. See docs/measuring.md for what each state costs.
"""

import math
import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, Self

import numpy as np

from tuner.devices import cpu_caches
from tuner.engines.base import EvaluatorSettings

# Bytes read to empty the private caches, in sizes of these.
SWEEPS = 2
# Pages whose translations a core has to forget at most: twice what any holds (4,096 on Zen 5).
_MAX_PAGES = 8192
_LINE_BYTES = 64
_LINE_WORDS = _LINE_BYTES // 4


class CacheOperations(Protocol):
    """Operations on the caches of this machine, which run on all cores."""

    def sweep(self, n_pages: int) -> None:
        """Read twice as much as the private caches of each core hold, and a number of pages."""

    def evict(self, tensors: Sequence[Any]) -> None:
        """Write tensors back to memory and remove them from all caches."""

    def rewrite(self, tensor: Any) -> None:
        """Write a tensor as the kernel does that computes it; its values stay."""


@dataclass(frozen=True)
class CacheKernels:
    """Functions of one TVM from which the operations are made.

    Attributes:
        tensor: Copies an array to a tensor.
        view: Makes a tensor of an array's own memory.
        read_lines: Builds a kernel in which every core reads the first word of each line of its
            share, given the cores, the lines of each and the words of a line.
        rewrite_lines: Builds a kernel in which every core writes one word of each cache line of
            its share back, given the cores; it takes the words and the number 0.
        evict: Removes tensors from all caches; the first argument is not read.
    """

    tensor: Callable[[np.ndarray[Any, Any]], Any]
    view: Callable[[np.ndarray[Any, Any]], Any]
    read_lines: Callable[[int, int, int], Any]
    rewrite_lines: Callable[[int], Any]
    evict: Callable[..., None]


class CpuCaches:
    """The :class:`CacheOperations` of this machine, on tensors of one TVM."""

    def __init__(self, kernels: CacheKernels) -> None:
        n_cores = cpu_caches.n_cores()
        n_lines = SWEEPS * cpu_caches.private_bytes() // _LINE_BYTES
        self._kernels = kernels
        self._read_lines = kernels.read_lines(n_cores, n_lines, _LINE_WORDS)
        self._lines = kernels.tensor(np.zeros((n_cores, n_lines, _LINE_WORDS), "float32"))
        self._largest = kernels.tensor(np.zeros((n_cores,), "float32"))
        self._rewrite_lines = kernels.rewrite_lines(n_cores)

    def sweep(self, n_pages: int) -> None:
        """Read a word of every page of one buffer, and of every cache line of another."""
        if n_pages:
            read_pages, pages = _page_reader(self._kernels, n_pages)
            read_pages(pages, self._largest)
        self._read_lines(self._lines, self._largest)

    def evict(self, tensors: Sequence[Any]) -> None:
        """Remove tensors from all caches by TVM's instructions for this machine."""
        self._kernels.evict(self._largest, *tensors)

    def rewrite(self, tensor: Any) -> None:
        """Write one word of each whole cache line of a tensor; every core has its share."""
        n_words = math.prod(tensor.shape) * np.dtype(str(tensor.dtype)).itemsize // 4
        if n_words >= _LINE_WORDS:
            self._rewrite_lines(tensor._create_view((n_words,), "int32"), 0)


@lru_cache(maxsize=4)
def _page_reader(kernels: CacheKernels, n_pages: int) -> tuple[Any, Any]:
    """Return a kernel in which every core reads a number of pages, and the pages."""
    n_cores = cpu_caches.n_cores()
    pages = untouched_pages(n_cores, n_pages).view("float32")
    return kernels.read_lines(n_cores, n_pages, pages.shape[2]), kernels.view(pages)


@dataclass(frozen=True)
class Arguments:
    """Arguments of a kernel on their device, by what they are in the network."""

    weights: Sequence[Any]
    activations: Sequence[Any]

    @classmethod
    def split(cls, arguments: Sequence[Any], weight_indices: Sequence[int]) -> Self:
        """Split arguments, given the indices of the constants."""
        activations = [each for i, each in enumerate(arguments) if i not in weight_indices]
        return cls([arguments[i] for i in weight_indices], activations)


def has_cold_weights(settings: EvaluatorSettings) -> bool:
    """Return whether the shared cache of this machine loses the weights between two inferences."""
    return settings.weights_in_memory or settings.network_bytes > cpu_caches.shared_bytes()


def describe(settings: EvaluatorSettings) -> dict[str, Any]:
    """Return the part of a record's conditions that names the state."""
    if not settings.cache_flush:
        return {}
    return {"weights": "memory" if has_cold_weights(settings) else "shared cache"}


def restorer(
    operations: CacheOperations | None, arguments: Arguments, settings: EvaluatorSettings
) -> Callable[[], None]:
    """Return a function that puts the caches into the state of the network, before each sample.

    Without operations it does nothing.
    """
    if operations is None:
        return lambda: None
    evicted = arguments.weights if has_cold_weights(settings) else ()
    # Each core reads its share of the network's pages between two calls of a kernel. In a virtual
    # machine a translation that was forgotten costs as much as several misses of the cache.
    n_pages = min(settings.network_bytes // mmap.PAGESIZE // cpu_caches.n_cores(), _MAX_PAGES)

    def restore() -> None:
        if evicted:
            operations.evict(evicted)
        operations.sweep(n_pages)
        for activation in arguments.activations:
            operations.rewrite(activation)

    return restore


def untouched_pages(n_cores: int, n_pages: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return memory that takes no room: pages that are only read are all the same page of zeros.

    Returns:
        An array of shape (n_cores, n_pages, words of a page).
    """
    # Private: shared memory would get pages of its own, and workers may not have any.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, n_cores * n_pages * mmap.PAGESIZE, flags=flags)
    with suppress(OSError):  # a kernel without huge pages
        # One huge page would take the place of 512 small ones.
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.int32).reshape(n_cores, n_pages, -1)
