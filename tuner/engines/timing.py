"""Sampling of run times: how many samples, which are taken again, and what they went through.

Contention only ever makes a sample longer. A sample during which something else used the cores is
therefore taken again, and never stands for the candidate while there are enough others.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.devices import cpu_contention, gpus
from tuner.engines.base import EvaluatorSettings, RunRequest

# A candidate this many times slower than the best gets the fewest samples: it cannot win.
_HOPELESS = 3.0
# With a flush before every run, more samples replace more runs per sample.
_MAX_SAMPLES = 24
# Times that disturbed samples are taken again, and the rest before the first; it doubles, so that
# bursts of a few milliseconds cost little, and a machine that is never free an eighth of a second.
_ATTEMPTS = 6
_MIN_REST_SECS = 0.002
# A few samples this many times longer than the shortest were disturbed, whatever the counters say.
_OUTLIER = 1.5

# Settings of a clock kernel, which few samples suffice for: the shortest counts.
CLOCK_SETTINGS = EvaluatorSettings(repeat=5, min_repeat_ms=0)


@dataclass(frozen=True)
class Sample:
    """One sample, seconds; disturbed if something else used the cores at the same time."""

    secs: float
    disturbed: bool = False


# Takes a number of samples.
TakeSamples = Callable[[int], Sequence[Sample]]


@dataclass(frozen=True)
class Sampled:
    """The samples of a candidate, seconds, and the part of its conditions that concerns them."""

    run_secs: tuple[float, ...]
    conditions: dict[str, Any]


def sample(take: TakeSamples, request: RunRequest) -> Sampled:
    """Take the samples that the settings request, fewer of a candidate that cannot win.

    Args:
        take: Takes samples of the candidate.
        request: Its settings, and the latency that it has to beat.

    Returns:
        Undisturbed samples. If there are fewer than ``repeat``, the shortest of the others follow,
        and ``disturbed`` of the conditions is True. ``repeated`` is the number of samples that were
        taken again.
    """
    settings = request.evaluator
    # Half of the time-out is left for loading and comparing.
    sampling = _Sampling(take, time.monotonic() + settings.timeout_secs / 2)
    sampling.collect(settings.repeat)
    typical = sampling.shortest
    if settings.cache_flush and typical <= _HOPELESS * request.best_secs:
        n_samples = settings.min_repeat_ms / 1e3 / max(typical * settings.number, 1e-9)
        sampling.collect(min(round(n_samples), _MAX_SAMPLES))
    return sampling.result(settings.repeat)


def read_clock(take: TakeSamples) -> float | None:
    """Return the time of a clock kernel, seconds; None if it was disturbed all the time."""
    sampled = sample(take, RunRequest("", "", (), CLOCK_SETTINGS))
    return None if sampled.conditions.get("disturbed") else min(sampled.run_secs)


@dataclass
class _Sampling:
    """Samples of one candidate so far, seconds."""

    take: TakeSamples
    deadline: float
    clean: list[float] = field(default_factory=list)
    disturbed: list[float] = field(default_factory=list)
    n_attempts: int = 0

    @property
    def shortest(self) -> float:
        """Shortest sample, which is the nearest to an undisturbed one."""
        return min(self.clean or self.disturbed)

    def collect(self, n_samples: int) -> None:
        """Take samples until this many are undisturbed, or attempts or time run out."""
        while len(self.clean) < n_samples:
            batch = self.take(n_samples - len(self.clean))
            self._sort(batch)
            if len(self.clean) >= n_samples:
                return
            rest_secs = _MIN_REST_SECS * 2**self.n_attempts
            if self.n_attempts == _ATTEMPTS or time.monotonic() + rest_secs > self.deadline:
                return
            self.n_attempts += 1
            time.sleep(rest_secs)

    def _sort(self, batch: Sequence[Sample]) -> None:
        limit = _OUTLIER * min([*self.clean, *(taken.secs for taken in batch)])
        n_long = sum(taken.secs > limit for taken in batch)
        # Where most are long, the kernel is like that.
        has_outliers = 2 * n_long < len(batch)
        for taken in batch:
            is_outlier = has_outliers and taken.secs > limit
            (self.disturbed if taken.disturbed or is_outlier else self.clean).append(taken.secs)

    def result(self, n_samples: int) -> Sampled:
        """Return at least this many samples, and how they came about."""
        missing = max(n_samples - len(self.clean), 0)
        conditions: dict[str, Any] = {}
        if self.disturbed:
            conditions["repeated"] = len(self.disturbed)
        if missing:
            conditions["disturbed"] = True
        return Sampled((*self.clean, *sorted(self.disturbed)[:missing]), conditions)


class SampleHook:
    """Function that a time evaluator calls before each sample: it restores the caches.

    Args:
        restore_caches: Puts the caches into the state in which the kernel is timed.
    """

    def __init__(self, restore_caches: Callable[[], None]) -> None:
        self._restore_caches = restore_caches
        self._starts: list[cpu_contention.Reading] = []
        self._ends: list[cpu_contention.Reading] = []

    def __call__(self, *_arguments: Any) -> None:
        """End the sample before, if there is one, and prepare the next."""
        if self._starts:
            self._ends.append(cpu_contention.read())
        self._restore_caches()
        self._starts.append(cpu_contention.read())

    def samples(self, secs: Sequence[float], settings: EvaluatorSettings) -> list[Sample]:
        """Return the samples that were taken since the hook was made."""
        ends = [*self._ends, cpu_contention.read()]
        shortest = 0.0 if settings.cache_flush else settings.min_repeat_ms / 1e3
        return [
            Sample(one, start.is_disturbed_until(end, max(one * settings.number, shortest)))
            for one, start, end in zip(secs, self._starts, ends, strict=True)
        ]


def merge_conditions(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the conditions of two visits of a candidate: sums, reasons of both, later values."""
    merged = gpus.merge_conditions(before, after)
    if repeated := before.get("repeated", 0) + after.get("repeated", 0):
        merged["repeated"] = repeated
    return merged
