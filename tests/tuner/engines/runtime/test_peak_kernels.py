"""Peaks of a CPU from the times of kernels."""

from collections.abc import Callable
from itertools import count

import pytest

from tuner.devices import cpu_contention
from tuner.devices.cpu_contention import Reading
from tuner.engines.runtime import peak_kernels
from tuner.engines.runtime.peak_kernels import PeakKernel, Run
from tuner.errors import WorkError


def run_at(flops: float, bandwidth: float) -> Callable[[PeakKernel], Run]:
    """Return kernels that reach given operations and bytes per second in their third sample."""

    def build(kernel: PeakKernel) -> Run:
        is_read = any("turn" in line for line in kernel.body)
        secs = kernel.amount / (bandwidth if is_read else flops)
        numbers = count()

        def run(before: Callable[[], None] = before_nothing) -> float:
            before()
            return secs if next(numbers) == 2 else 2.0 * secs

        return run

    return build


def before_nothing() -> None:
    """Do nothing."""


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters that stand still, as on a machine that does nothing else."""
    monkeypatch.setattr(cpu_contention, "read", lambda: Reading(0.0, 0, 0))


@pytest.mark.usefixtures("undisturbed")
def test_the_shortest_sample_counts() -> None:
    """Operations and bytes are divided by it."""
    peaks = peak_kernels.measure(run_at(1e11, 1e10))

    assert peaks.flops == pytest.approx({"float32": 1e11, "float64": 1e11})
    assert peaks.cache_bandwidth == pytest.approx(1e10)
    assert peaks.memory_bandwidth == pytest.approx(1e10)
    assert peaks.cache_bytes > 2**20
    assert peaks.weights_kept_secs is not None
    assert peaks.weights_kept_secs > 1.0


@pytest.mark.parametrize(
    ("kept_secs", "memory_secs", "expected"),
    [(0.005, 3.0, 0.006), (1.0, 3.0, 10.0), (0.0, 1.4, 10.0)],
)
def test_weights_are_kept_until_the_wait_after_which_a_part_is_read_from_memory(
    kept_secs: float, memory_secs: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is long if the data stay beyond what was tried, or memory is as fast."""
    waited = [0.0]
    monkeypatch.setattr(peak_kernels, "_spin", waited.append)

    def read(before: Callable[[], None] = before_nothing) -> float:
        waited.append(0.0)
        before()
        return memory_secs if waited[-1] > kept_secs else 1.0

    assert peak_kernels._weights_kept_secs(read, memory_secs) == expected


def test_disturbed_samples_give_no_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for a core show less than the device can do."""
    waited = count()
    monkeypatch.setattr(cpu_contention, "read", lambda: Reading(float(next(waited)), 0, 0))

    with pytest.raises(WorkError, match="other processes use the cores"):
        peak_kernels.measure(run_at(1e11, 1e10))


def test_one_slow_moment_does_not_hide_that_weights_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reads at once that are as slow as memory for a turn say nothing about the cache."""
    waited = [0.0]
    turns: list[float] = []
    monkeypatch.setattr(peak_kernels, "_spin", waited.append)

    def read(before: Callable[[], None] = before_nothing) -> float:
        waited.append(0.0)
        before()
        if waited[-1] and waited[-1] not in turns:
            turns.append(waited[-1])
        slow = 1.8 if len(turns) == 2 else 1.0
        return slow * (2.0 if waited[-1] > 0.005 else 1.0)

    assert peak_kernels._weights_kept_secs(read, 2.0) == 0.006
