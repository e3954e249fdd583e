"""What a jitted function holds in memory: libraries by signature, and how often they served."""

import itertools
import threading
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tuner.jit.libraries import Loaded


@dataclass(frozen=True)
class CacheInfo:
    """How a jitted function got what it called.

    Attributes:
        hits: Calls served from memory.
        store_hits: Libraries that the build cache had.
        misses: Libraries that had to be built.
        swaps: Libraries that a better one replaced.
        seconds_saved: What the hits would have waited for their libraries, and the store hits for
            the building of theirs.
        currsize: Signatures in memory.
        maxsize: Most signatures in memory.
        fallbacks: Subgraphs of those in memory that have no record yet.
    """

    hits: int
    store_hits: int
    misses: int
    swaps: int
    seconds_saved: float
    currsize: int
    maxsize: int
    fallbacks: int


class Serving:
    """A library that serves one signature; any thread may call it.

    Attributes:
        loaded: The library, now.
        n_hits: Calls after the first.
        secs: What the first call waited for its library.
        used: When it was last called, in calls of all.
    """

    def __init__(self, loaded: Loaded) -> None:
        # A library cannot be entered twice, and a call is not to see half of a swap.
        self._lock = threading.Lock()
        self.loaded = loaded
        self.n_hits = 0
        self.secs = loaded.secs
        self.used = 0
        self._function: Any = None
        self._weights: tuple[Any, ...] = ()
        self.put(loaded)

    def put(self, loaded: Loaded) -> None:
        """Serve every later call by this library; waits for one call at most."""
        program = loaded.library.programs[0]
        with self._lock:
            self.loaded = loaded
            self._function = program.function
            self._weights = program.weights

    def run(self, tensors: Sequence[Any]) -> Any:
        """Call the library on tensors in the order of its inputs."""
        with self._lock:
            self.n_hits += 1
            return self._function(*tensors, *self._weights)

    def run_arrays(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Call the library on arrays by input name."""
        with self._lock:
            self.n_hits += 1
            return self.loaded.library(arrays)

    def try_out(self, tensors: Sequence[Any]) -> Any:
        """Call it, and do not count that."""
        with self._lock:
            return self._function(*tensors, *self._weights)


class Recallable(Protocol):
    """What is held for a signature."""

    serving: Serving


Held = TypeVar("Held", bound=Recallable)


class Memory(Generic[Held]):
    """Serves by signature; the least recently used one makes room.

    :meth:`find` takes no lock; everything else is called under :attr:`lock`.

    Attributes:
        lock: Held while a signature is looked for a second time and compiled.
    """

    def __init__(self, maxsize: int, name: str) -> None:
        self.lock = threading.RLock()
        self._maxsize = maxsize
        self._name = name
        self._held: dict[Hashable, Held] = {}
        self._clock = itertools.count(1)
        self._warned = False
        self.reset()

    def reset(self) -> None:
        """Forget everything, the counts too."""
        self._held = {}
        self._hits = self._store_hits = self._misses = self._swaps = 0
        self._saved_secs = 0.0

    def find(self, key: Hashable) -> Held | None:
        """Return what serves a signature."""
        held = self._held.get(key)
        if held is not None:
            held.serving.used = next(self._clock)
        return held

    def add(self, key: Hashable, held: Held) -> None:
        """Keep what was got for a new signature."""
        loaded = held.serving.loaded
        if loaded.cached:
            self._store_hits += 1
            self._saved_secs += max(loaded.compile_secs - loaded.secs, 0.0)
        else:
            self._misses += 1
        if len(self._held) >= self._maxsize:
            self._make_room()
        held.serving.used = next(self._clock)
        self._held = {**self._held, key: held}

    def swap(self, held: Held, loaded: Loaded) -> None:
        """Serve a signature by another library from now on."""
        held.serving.put(loaded)
        self._swaps += 1

    def all(self) -> list[tuple[Hashable, Held]]:
        """Return what is held, with its signature."""
        return list(self._held.items())

    def drop_all(self) -> None:
        """Let go of every library; the counts stay."""
        for held in self._held.values():
            self._settle(held)
        self._held = {}

    def info(self) -> CacheInfo:
        """Return the counts."""
        serving = [held.serving for held in self._held.values()]
        return CacheInfo(
            hits=self._hits + sum(each.n_hits for each in serving),
            store_hits=self._store_hits,
            misses=self._misses,
            swaps=self._swaps,
            seconds_saved=self._saved_secs + sum(each.n_hits * each.secs for each in serving),
            currsize=len(serving),
            maxsize=self._maxsize,
            fallbacks=sum(each.loaded.n_fallbacks for each in serving),
        )

    def _make_room(self) -> None:
        oldest = min(self._held, key=lambda key: self._held[key].serving.used)
        self._settle(self._held[oldest])
        self._held = {key: held for key, held in self._held.items() if key != oldest}
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._name} was called with more than {self._maxsize} signatures; those not "
                "used for longest are loaded anew when they come back: raise maxsize, or pad to "
                "fewer shapes",
                RuntimeWarning,
                stacklevel=6,
            )

    def _settle(self, held: Held) -> None:
        """Count the hits of what is let go."""
        self._hits += held.serving.n_hits
        self._saved_secs += held.serving.n_hits * held.serving.secs
