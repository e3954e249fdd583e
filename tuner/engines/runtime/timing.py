"""Sampling of run times: how many samples, which are taken again, and what they went through.

Contention only ever makes a sample longer. A sample during which something else used the cores, or
beside which the clock kernel was slow, is therefore taken again, and never stands for the candidate
while there are enough others.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import isfinite
from statistics import fmean, median
from typing import Any

from tuner.devices import cpu_contention, gpus
from tuner.engines.base import EvaluatorSettings, RunRequest, RunResult
from tuner.engines.runtime.clock_readings import MAX_SLOWDOWN, ClockReadings

# A candidate this many times slower than the best gets the fewest samples: it cannot win.
_HOPELESS = 3.0
# With a flush before every run, more samples replace more runs per sample.
_MAX_SAMPLES = 24
# Times that disturbed samples are taken again, and the rest before the first; it doubles, so that
# bursts of a few milliseconds cost little, and a machine that is never free a few dozen samples.
_ATTEMPTS = 4
_MIN_REST_SECS = 0.002
# A few samples this many times longer than the shortest were disturbed, whatever the counters say.
_OUTLIER = 1.5


@dataclass(frozen=True)
class Sample:
    """One sample, seconds; disturbed if something else used the cores at the same time.

    ``clock_secs`` is the time of the clock kernel around it, or undisturbed beside a disturbed one,
    which then never counts for less than it took; None if it was not timed.
    """

    secs: float
    disturbed: bool = False
    clock_secs: float | None = None


# Takes a number of samples.
TakeSamples = Callable[[int], Sequence[Sample]]


@dataclass(frozen=True)
class Sampled:
    """The samples of a candidate, seconds, and the part of its conditions that concerns them.

    ``clock_secs`` is the median time of the clock kernel beside them; None if it was not timed.
    """

    run_secs: tuple[float, ...]
    conditions: dict[str, Any]
    clock_secs: float | None = None

    def result(self, verdict: RunResult) -> RunResult:
        """Return the result of a candidate that was found correct."""
        return replace(
            verdict,
            run_secs=self.run_secs,
            conditions=self.conditions or None,
            clock_secs=self.clock_secs,
        )


def sample(take: TakeSamples, request: RunRequest) -> Sampled:
    """Take the samples that the settings request, fewer of a candidate that cannot win.

    Args:
        request: Its settings, and the latency that it has to beat.

    Returns:
        Undisturbed samples. If there are fewer than ``repeat``, the shortest of the others follow,
        and ``disturbed`` of the conditions is True. ``repeated`` is the number of samples that were
        left out.
    """
    settings = request.evaluator
    # Half of the time-out is left for loading and comparing.
    sampling = _Sampling(take, time.monotonic() + settings.timeout_secs / 2, settings.number)
    sampling.collect(settings.repeat, _ATTEMPTS)
    typical = sampling.shortest
    if settings.cache_flush and typical <= _HOPELESS * request.best_secs:
        n_samples = settings.min_repeat_ms / 1e3 / max(typical * settings.number, 1e-9)
        # More samples only narrow the median down, and are not worth another attempt.
        sampling.collect(min(round(n_samples), _MAX_SAMPLES), 0)
    return sampling.result(settings.repeat)


@dataclass
class _Sampling:
    """Samples of one candidate so far."""

    take: TakeSamples
    deadline: float
    number: int
    clean: list[Sample] = field(default_factory=list)
    disturbed: list[Sample] = field(default_factory=list)

    @property
    def shortest(self) -> float:
        """Shortest sample, which is the nearest to an undisturbed one, seconds."""
        return min(each.secs for each in self.clean or self.disturbed)

    def collect(self, n_samples: int, n_attempts: int) -> None:
        """Take samples until this many are undisturbed, or attempts or time run out.

        Each attempt takes twice as many for one that is missing as the attempt before; those that
        are too many are dropped.
        """
        if len(self.clean) < n_samples:
            self._sort(self.take(n_samples - len(self.clean)))
        for doubled in (2**attempt for attempt in range(n_attempts)):
            n_missing = n_samples - len(self.clean)
            rest_secs = _MIN_REST_SECS * doubled
            secs_left = self.deadline - time.monotonic() - rest_secs
            n_taken = min(
                n_missing * doubled,
                max(n_missing, _MAX_SAMPLES),
                int(secs_left / max(self.shortest * self.number, 1e-9)),
            )
            if n_taken <= 0:
                return
            time.sleep(rest_secs)
            self._sort(self.take(n_taken))
            del self.clean[n_samples:]

    def _sort(self, batch: Sequence[Sample]) -> None:
        limit = _OUTLIER * min(taken.secs for taken in [*self.clean, *batch])
        n_long = sum(taken.secs > limit for taken in batch)
        # Where most are long, the kernel is like that.
        has_outliers = 2 * n_long < len(batch)
        for taken in batch:
            is_outlier = has_outliers and taken.secs > limit
            (self.disturbed if taken.disturbed or is_outlier else self.clean).append(taken)

    def result(self, n_samples: int) -> Sampled:
        """Return at least this many samples, and how they came about."""
        missing = max(n_samples - len(self.clean), 0)
        conditions: dict[str, Any] = {}
        if self.disturbed:
            conditions["repeated"] = len(self.disturbed)
        if missing:
            conditions["disturbed"] = True
        shortest = sorted(self.disturbed, key=lambda taken: taken.secs)
        samples = [*self.clean, *shortest[:missing]]
        clock_secs = _typical(taken.clock_secs for taken in samples)
        return Sampled(tuple(taken.secs for taken in samples), conditions, clock_secs)


class SampleHook:
    """Function that a time evaluator calls before each sample.

    It restores the caches, and reads the clock before and after every sample.

    Args:
        restore_caches: Puts the caches into the state in which the kernel is timed.
        clock: Clock of the device; None for none.
    """

    def __init__(
        self, restore_caches: Callable[[], None], clock: ClockReadings | None = None
    ) -> None:
        self._restore_caches = restore_caches
        self._clock = clock
        self._starts: list[_Moment] = []
        self._ends: list[_Moment] = []

    def __call__(self, *_arguments: Any) -> None:
        """End the sample before, if there is one, and prepare the next."""
        if self._starts:
            self._end()
        self._restore_caches()
        clock_secs = self._read_clock()
        self._starts.append(_Moment(cpu_contention.read(), clock_secs))

    def samples(self, secs: Sequence[float], settings: EvaluatorSettings) -> list[Sample]:
        """Return the samples that were taken since the hook was made."""
        self._end()
        shortest = 0.0 if settings.cache_flush else settings.min_repeat_ms / 1e3
        undisturbed = None if self._clock is None else self._clock.undisturbed_secs
        return [
            _sample(one, start, end, max(one * settings.number, shortest), undisturbed)
            for one, start, end in zip(secs, self._starts, self._ends, strict=True)
        ]

    def _end(self) -> None:
        counters = cpu_contention.read()
        self._ends.append(_Moment(counters, self._read_clock()))

    def _read_clock(self) -> float | None:
        return None if self._clock is None else self._clock.read()


@dataclass(frozen=True)
class _Moment:
    """Counters of the machine, and the time of the clock kernel, beside a sample."""

    counters: cpu_contention.Reading
    clock_secs: float | None


def _sample(
    secs: float, start: _Moment, end: _Moment, lasted: float, undisturbed: float | None
) -> Sample:
    """Return a sample, disturbed if the counters or the clock around it say so."""
    is_disturbed = start.counters.is_disturbed_until(end.counters, lasted)
    if undisturbed is None:
        return Sample(secs, is_disturbed)
    clocks = [moment.clock_secs for moment in (start, end) if moment.clock_secs is not None]
    # Readings that differ say nothing about the time between them, nor does one that is missing.
    agree = len(clocks) == 2 and max(clocks) <= MAX_SLOWDOWN * min(undisturbed, *clocks)
    if is_disturbed or not agree:
        return Sample(secs, True, undisturbed if isfinite(undisturbed) else None)
    return Sample(secs, clock_secs=fmean(clocks))


def merge(turns: Sequence[Sampled]) -> Sampled:
    """Merge the samples of one candidate from several turns."""
    return Sampled(
        tuple(secs for turn in turns for secs in turn.run_secs),
        reduce(merge_conditions, (turn.conditions for turn in turns), {}),
        _typical(turn.clock_secs for turn in turns),
    )


def _typical(clocks: Iterable[float | None]) -> float | None:
    """Return the median of the times that are known; None if there is none."""
    known = [secs for secs in clocks if secs is not None]
    return median(known) if known else None


def merge_conditions(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the conditions of two visits of a candidate: sums, reasons of both, later values."""
    merged = gpus.merge_conditions(before, after)
    if repeated := before.get("repeated", 0) + after.get("repeated", 0):
        merged["repeated"] = repeated
    return merged
