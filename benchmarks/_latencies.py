"""How long requests took, in the words of a report."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the sample that so much of them do not exceed; the nearest rank."""
    ordered = sorted(samples)
    return ordered[max(-(-int(share * 1e6) * len(ordered) // 1_000_000) - 1, 0)]


def described(secs: Sequence[float]) -> dict[str, float]:
    """Return percentiles and rate of requests made one after the other, milliseconds."""
    return {
        "n": len(secs),
        "per_sec": round(len(secs) / sum(secs), 1),
        **{
            name: round(percentile(secs, share) * 1e3, 3)
            for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("max_ms", 1.0))
        },
    }


def timed(call: Callable[[Any], object], keys: Iterable[Any]) -> list[float]:
    """Call a function for every key and return the seconds that each took."""
    samples = []
    for key in keys:
        started = time.perf_counter()
        call(key)
        samples.append(time.perf_counter() - started)
    return samples
