"""Disturbed samples are taken again, and do not stand for a candidate while there are others."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, cast

import pytest

from tuner.devices import cpu_contention
from tuner.devices.cpu_contention import Reading
from tuner.engines.base import EvaluatorSettings, RunRequest
from tuner.engines.runtime import timing
from tuner.engines.runtime.timing import Sample, SampleHook

if TYPE_CHECKING:
    from tuner.engines.runtime.clock_readings import ClockReadings

SETTINGS = EvaluatorSettings(repeat=3, min_repeat_ms=0)
REQUEST = RunRequest("", "{}", (), SETTINGS)


class Kernel:
    """A kernel whose samples are given; the last one repeats."""

    def __init__(self, *samples: Sample) -> None:
        self.batches: list[int] = []
        self._samples = self._forever(samples)

    def take(self, repeat: int) -> Sequence[Sample]:
        """Return the next samples."""
        self.batches.append(repeat)
        return [next(self._samples) for _ in range(repeat)]

    @staticmethod
    def _forever(samples: Sequence[Sample]) -> Iterator[Sample]:
        yield from samples
        while True:
            yield samples[-1]


def clean(*secs: float) -> list[Sample]:
    """Return undisturbed samples."""
    return [Sample(one) for one in secs]


def disturbed(*secs: float) -> list[Sample]:
    """Return disturbed samples."""
    return [Sample(one, disturbed=True) for one in secs]


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Rests between attempts, which are noted and not taken."""
    rests: list[float] = []
    monkeypatch.setattr("tuner.engines.runtime.timing.time.sleep", rests.append)
    return rests


def test_undisturbed_samples_are_taken_once() -> None:
    """Nothing is repeated, and nothing is noted."""
    kernel = Kernel(*clean(3.0, 1.0, 2.0))

    sampled = timing.sample(kernel.take, replace(REQUEST, best_secs=1e-9))

    assert sampled.run_secs == (3.0, 1.0, 2.0)
    assert sampled.conditions == {}
    assert kernel.batches == [3]


def test_disturbed_samples_are_taken_again_and_left_out(no_rest: list[float]) -> None:
    """The candidate has the samples of the quiet moments alone."""
    kernel = Kernel(*disturbed(9.0, 8.0), *clean(1.0), *disturbed(7.0), *clean(1.1, 1.2))

    sampled = timing.sample(kernel.take, REQUEST)

    assert sampled.run_secs == (1.0, 1.1, 1.2)
    assert sampled.conditions == {"repeated": 3}
    assert kernel.batches == [3, 2, 2]
    assert no_rest == [0.002, 0.004]


def test_contention_that_lasts_marks_the_candidate(no_rest: list[float]) -> None:
    """The shortest samples are the nearest to the truth, since contention only adds time."""
    kernel = Kernel(*disturbed(3.0, 2.0, 4.0, 9.0))

    sampled = timing.sample(kernel.take, REQUEST)

    assert sampled.run_secs == (2.0, 3.0, 4.0)
    assert sampled.conditions["disturbed"] is True
    assert len(no_rest) == 4


def test_contention_does_not_outlast_the_time_out(no_rest: list[float]) -> None:
    """No attempt starts that might not end in time."""
    hurried = replace(REQUEST, evaluator=replace(SETTINGS, timeout_secs=1e-3))

    timing.sample(Kernel(*disturbed(1.0)).take, hurried)

    assert no_rest == []


def test_samples_that_are_taken_again_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that would pass the deadline is cut, however many samples are missing."""
    now = [0.0]
    monkeypatch.setattr("tuner.engines.runtime.timing.time.monotonic", lambda: now[0])
    kernel = Kernel(*disturbed(0.5))

    def take(repeat: int) -> Sequence[Sample]:
        now[0] += 0.5 * repeat
        return kernel.take(repeat)

    timing.sample(take, replace(REQUEST, evaluator=replace(SETTINGS, timeout_secs=20.0)))

    assert kernel.batches == [3, 3, 6, 7]
    assert now[0] <= 10.0


def test_three_disturbed_samples_do_not_bury_a_candidate() -> None:
    """The shortest sample decides whether a candidate can win, not the typical one."""
    settings = replace(SETTINGS, min_repeat_ms=100)
    request = replace(REQUEST, evaluator=settings, best_secs=0.01)
    kernel = Kernel(*disturbed(0.4, 0.5, 0.6), *clean(0.009))

    sampled = timing.sample(kernel.take, request)

    assert set(sampled.run_secs) == {0.009}
    assert len(sampled.run_secs) == 11


def test_a_hopeless_candidate_gets_the_fewest_samples() -> None:
    """A candidate that cannot win is timed briefly."""
    settings = replace(SETTINGS, min_repeat_ms=100_000)
    kernel = Kernel(*clean(3.1))

    sampled = timing.sample(kernel.take, replace(REQUEST, evaluator=settings, best_secs=1.0))

    assert sampled.run_secs == (3.1, 3.1, 3.1)


def test_a_few_long_samples_count_as_disturbed() -> None:
    """The spread of the samples shows a disturbance that no counter does."""
    kernel = Kernel(*clean(1.0, 1.6, 1.1), *clean(1.05))

    sampled = timing.sample(kernel.take, REQUEST)

    assert sampled.run_secs == (1.0, 1.1, 1.05)
    assert sampled.conditions == {"repeated": 1}


def test_a_kernel_that_is_mostly_long_is_like_that() -> None:
    """One lucky sample does not make the others disturbed."""
    kernel = Kernel(*clean(1.0, 1.6, 1.7))

    assert timing.sample(kernel.take, REQUEST).run_secs == (1.0, 1.6, 1.7)


def test_samples_beyond_the_fewest_are_not_taken_again(no_rest: list[float]) -> None:
    """They narrow the median down, and are not worth an eighth of a second of rests."""
    settings = replace(SETTINGS, min_repeat_ms=10_000)
    kernel = Kernel(*clean(1.0, 1.0, 1.0), *disturbed(1.4))

    sampled = timing.sample(kernel.take, replace(REQUEST, evaluator=settings, best_secs=1.0))

    assert sampled.run_secs == (1.0, 1.0, 1.0)
    assert sampled.conditions == {"repeated": 7}
    assert no_rest == []


class Clock:
    """A clock kernel whose times are given."""

    def __init__(self, *readings: float | None) -> None:
        self._readings = iter(readings)
        self.undisturbed_secs = 1.0 if any(readings) else inf

    def read(self) -> float | None:
        """Return the next time."""
        return next(self._readings)


def test_samples_beside_a_slow_clock_are_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either reading may show it; such a sample counts for no less than it took."""
    monkeypatch.setattr(cpu_contention, "read", lambda: Reading(0.0, 0, 0))
    readings = (1.0, 1.1, 1.0, 1.2, 2.0, 1.0, None, 1.0, 0.8, 1.0)
    hook = SampleHook(lambda: None, cast("ClockReadings", Clock(*readings)))
    for _ in range(5):
        hook()

    samples = hook.samples([0.1, 0.2, 0.3, 0.4, 0.5], SETTINGS)

    assert samples == [
        Sample(0.1, disturbed=False, clock_secs=1.05),
        Sample(0.2, disturbed=True, clock_secs=1.0),
        Sample(0.3, disturbed=True, clock_secs=1.0),
        Sample(0.4, disturbed=True, clock_secs=1.0),
        Sample(0.5, disturbed=True, clock_secs=1.0),
    ]


def test_a_clock_without_a_reading_marks_samples_as_disturbed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their latency is what they took."""
    monkeypatch.setattr(cpu_contention, "read", lambda: Reading(0.0, 0, 0))
    hook = SampleHook(lambda: None, cast("ClockReadings", Clock(None, None)))
    hook()

    assert hook.samples([0.1], SETTINGS) == [Sample(0.1, disturbed=True)]


def test_the_clock_of_a_candidate_is_that_of_its_samples() -> None:
    """Samples that were left out do not count, and turns are merged."""
    samples = [Sample(1.0, clock_secs=1.0), Sample(2.0, disturbed=True, clock_secs=9.0)]
    kernel = Kernel(*samples, Sample(1.1, clock_secs=1.2), Sample(1.2, clock_secs=1.1))

    sampled = timing.sample(kernel.take, REQUEST)
    merged = timing.merge([sampled, replace(sampled, clock_secs=1.3)])

    assert sampled.clock_secs == 1.1
    assert merged.clock_secs == pytest.approx(1.2)
    assert merged.run_secs == 2 * sampled.run_secs
    assert merged.conditions == {"repeated": 2}


def test_conditions_of_turns_add_up() -> None:
    """Samples that were repeated in any turn count."""
    first = {"weights": "memory", "repeated": 2, "throttled": ["power"]}

    merged = timing.merge_conditions(first, {"weights": "memory", "repeated": 1, "throttled": []})

    assert merged == {"weights": "memory", "repeated": 3, "throttled": ["power"]}
