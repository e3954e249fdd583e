"""State of the caches in which a kernel of a CPU is timed: that in which its network calls it.

The other kernels of a network run between two calls of one. They push all that it reads out of the
private caches of the cores. Its weights stay in the shared cache, unless the weights of the
network are larger than that; then they are in memory. Its other inputs were written by the kernels
before it, the last one right before, by all cores. See docs/measuring.md for what each state costs.
"""

import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tuner.devices import cpu_caches
from tuner.engines.base import EvaluatorSettings

# Bytes read to empty the private caches, in sizes of these.
SWEEPS = 2
# Pages whose translations a core has to forget at most: twice what any holds (4,096 on Zen 5).
_MAX_PAGES = 8192


class CacheOperations(Protocol):
    """Operations on the caches of this machine, which run on all cores."""

    def sweep(self, n_pages: int) -> None:
        """Read twice as much as the private caches of each core hold, and a number of pages."""

    def evict(self, tensors: Sequence[Any]) -> None:
        """Write tensors back to memory and remove them from all caches."""

    def rewrite(self, tensor: Any) -> None:
        """Write a tensor as the kernel does that computes it; its values stay."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of a kernel on their device, by what they are in the network."""

    weights: Sequence[Any]
    activations: Sequence[Any]


def has_cold_weights(settings: EvaluatorSettings) -> bool:
    """Return whether the shared cache of this machine loses the weights between two inferences."""
    return settings.network_bytes > cpu_caches.shared_bytes()


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
    memory = mmap.mmap(-1, n_cores * n_pages * mmap.PAGESIZE)
    with suppress(OSError):  # a kernel without huge pages
        # One huge page would take the place of 512 small ones.
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.int32).reshape(n_cores, n_pages, -1)
