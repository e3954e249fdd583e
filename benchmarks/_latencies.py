"""Percentiles of request durations, as reports print them."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile: the sample that ``share`` of them do not exceed."""
    ordered = sorted(samples)
    return ordered[max(-(-int(share * 1e6) * len(ordered) // 1_000_000) - 1, 0)]


def described(secs: Sequence[float]) -> dict[str, float]:
    """Return percentiles in milliseconds and the rate of consecutive requests."""
    return {
        "n": len(secs),
        "per_sec": round(len(secs) / sum(secs), 1),
        **{
            name: round(percentile(secs, share) * 1e3, 3)
            for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("max_ms", 1.0))
        },
    }


def timed(call: Callable[[Any], object], keys: Iterable[Any]) -> list[float]:
    """Call a function for every key and return the seconds of each call."""
    samples = []
    for key in keys:
        started = time.perf_counter()
        call(key)
        samples.append(time.perf_counter() - started)
    return samples
