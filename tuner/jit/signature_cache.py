"""The libraries that a jitted function holds in memory by signature, and how often each served."""

import itertools
import threading
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tuner.jit.libraries import LoadedLibrary


@dataclass(frozen=True)
class CacheInfo:
    """Counts of the calls and libraries of a jitted function.

    Attributes:
        hits: Calls served from memory.
        store_hits: Libraries that the build cache had.
        misses: Libraries that had to be built.
        swaps: Libraries that a better one replaced.
        seconds_saved: Time that hits did not wait for their libraries, and store hits not for
            the build of theirs.
        currsize: Signatures in memory.
        maxsize: Largest number of signatures in memory.
        fallbacks: Subgraphs in memory that have no record yet.
    """

    hits: int
    store_hits: int
    misses: int
    swaps: int
    seconds_saved: float
    currsize: int
    maxsize: int
    fallbacks: int


class ServedLibrary:
    """A library that serves one signature; thread-safe.

    Attributes:
        loaded: The library that serves now.
        n_hits: Number of calls after the first.
        secs: Time that the first call waited for its library.
        used: Last call, counted in calls of all signatures.
    """

    def __init__(self, loaded: LoadedLibrary) -> None:
        # A library serves one call at a time, and a call must not see half of a swap.
        self._lock = threading.Lock()
        self.loaded = loaded
        self.n_hits = 0
        self.secs = loaded.secs
        self.used = 0
        self.put(loaded)

    @property
    def on_gpu(self) -> bool:
        """True if the library runs on a GPU, where calls take memory for the outputs."""
        return bool(self.loaded.manifest.programs[0].memory)

    def put(self, loaded: LoadedLibrary) -> None:
        """Serve every later call by this library; waits for at most one call."""
        with self._lock:
            self.loaded = loaded
            self._results = loaded.library.programs[0].results

    def run(self, tensors: Sequence[Any], outputs: Sequence[Any] = ()) -> list[Any]:
        """Call the library.

        Args:
            tensors: Tensors in the order of its inputs.
            outputs: Tensors for its outputs on a GPU, which are returned; empty on a CPU.
        """
        with self._lock:
            self.n_hits += 1
            if not outputs:
                return self._results(tensors)
            library = self.loaded.library
            inputs = dict(zip(library.inputs, tensors, strict=True))
            library.run_on_device(inputs, dict(zip(library.outputs, outputs, strict=True)))
            return list(outputs)

    def run_arrays(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Call the library on arrays by input name."""
        with self._lock:
            self.n_hits += 1
            return self.loaded.library(arrays)


class HasLibrary(Protocol):
    """An object that serves one signature by a library."""

    served: ServedLibrary


_Call = TypeVar("_Call", bound=HasLibrary)


class SignatureCache(Generic[_Call]):
    """Calls by signature; the least recently used one is dropped for a new one.

    :meth:`find` takes no lock; all other methods are called under :attr:`lock`.

    Attributes:
        lock: Held while a signature is looked up a second time and compiled.
    """

    def __init__(self, maxsize: int, name: str) -> None:
        self.lock = threading.RLock()
        self._maxsize = maxsize
        self._name = name
        self._calls: dict[Hashable, _Call] = {}
        self._clock = itertools.count(1)
        self._warned = False
        self.reset()

    def reset(self) -> None:
        """Drop all calls, and reset the counts."""
        self._calls = {}
        self._hits = self._store_hits = self._misses = self._swaps = 0
        self._saved_secs = 0.0

    def find(self, key: Hashable) -> _Call | None:
        """Return the call of a signature."""
        call = self._calls.get(key)
        if call is not None:
            call.served.used = next(self._clock)
        return call

    def add(self, key: Hashable, call: _Call) -> None:
        """Keep the call of a new signature."""
        loaded = call.served.loaded
        if loaded.cached:
            self._store_hits += 1
            self._saved_secs += max(loaded.compile_secs - loaded.secs, 0.0)
        else:
            self._misses += 1
        if len(self._calls) >= self._maxsize:
            self._drop(min(self._calls, key=lambda key: self._calls[key].served.used))
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"{self._name} was called with more than {self._maxsize} signatures; those "
                    "not used for longest are loaded again when they come back: raise maxsize, or "
                    "pad to fewer shapes",
                    RuntimeWarning,
                    stacklevel=5,
                )
        call.served.used = next(self._clock)
        self._calls = {**self._calls, key: call}

    def swap(self, call: _Call, loaded: LoadedLibrary) -> None:
        """Serve a signature by another library from now on."""
        call.served.put(loaded)
        self._swaps += 1

    def calls(self) -> list[_Call]:
        """Return all calls."""
        return list(self._calls.values())

    def drop(self, is_old: Callable[[_Call], bool]) -> None:
        """Drop some calls; the counts stay."""
        for key, call in list(self._calls.items()):
            if is_old(call):
                self._drop(key)

    def info(self) -> CacheInfo:
        """Return the counts."""
        served = [call.served for call in self._calls.values()]
        return CacheInfo(
            hits=self._hits + sum(library.n_hits for library in served),
            store_hits=self._store_hits,
            misses=self._misses,
            swaps=self._swaps,
            seconds_saved=self._saved_secs
            + sum(library.n_hits * library.secs for library in served),
            currsize=len(served),
            maxsize=self._maxsize,
            fallbacks=sum(library.loaded.n_fallbacks for library in served),
        )

    def _drop(self, key: Hashable) -> None:
        """Drop a call, and keep its hits."""
        call = self._calls[key]
        self._calls = {other: kept for other, kept in self._calls.items() if other != key}
        self._hits += call.served.n_hits
        self._saved_secs += call.served.n_hits * call.served.secs
