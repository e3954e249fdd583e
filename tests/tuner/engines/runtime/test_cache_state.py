"""Caches are put into the state in which a network of the given size calls its kernels."""

import mmap
from collections.abc import Sequence

import pytest

from tuner.devices import cpu_caches
from tuner.engines.base import EvaluatorSettings
from tuner.engines.runtime import cache_state
from tuner.engines.runtime.cache_state import Arguments

ARGUMENTS = Arguments(weights=["w"], activations=["x", "y"])


class Operations:
    """Operations that are noted and not carried out."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def sweep(self, n_pages: int) -> None:
        """Note the pages."""
        self.calls.append(("sweep", n_pages))

    def evict(self, tensors: Sequence[object]) -> None:
        """Note the tensors."""
        self.calls.append(("evict", tensors))

    def rewrite(self, tensor: object) -> None:
        """Note the tensor."""
        self.calls.append(("rewrite", tensor))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two cores and a shared cache of 32 MiB."""
    monkeypatch.setattr(cpu_caches, "n_cores", lambda: 2)
    monkeypatch.setattr(cpu_caches, "shared_bytes", lambda: 32 * 2**20)


def calls_for(settings: EvaluatorSettings) -> list[tuple[str, object]]:
    """Return the operations before a sample."""
    operations = Operations()
    cache_state.restorer(operations, ARGUMENTS, settings)()
    return operations.calls


def test_a_small_network_keeps_its_weights_in_the_shared_cache() -> None:
    """The private caches are emptied, then the inputs written as their producers do."""
    settings = EvaluatorSettings(network_bytes=1000 * mmap.PAGESIZE)

    assert calls_for(settings) == [("sweep", 500), ("rewrite", "x"), ("rewrite", "y")]
    assert cache_state.describe(settings) == {"weights": "shared cache"}


def test_a_large_network_has_its_weights_in_memory() -> None:
    """No cache has them, nor the translation of their pages; more than a core holds is enough."""
    settings = EvaluatorSettings(network_bytes=100 * 2**20)

    assert calls_for(settings) == [
        ("evict", ["w"]),
        ("sweep", 8192),
        ("rewrite", "x"),
        ("rewrite", "y"),
    ]
    assert cache_state.describe(settings) == {"weights": "memory"}


def test_without_a_flush_nothing_is_done() -> None:
    """No record says where the weights were."""
    settings = EvaluatorSettings(cache_flush=False, network_bytes=100 * 2**20)

    cache_state.restorer(None, ARGUMENTS, settings)()

    assert cache_state.describe(settings) == {}
