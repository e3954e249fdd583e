"""Peaks of a CPU from the times of kernels."""

from collections.abc import Callable
from itertools import count

import pytest

from tuner.devices import cpu_contention
from tuner.devices.cpu_contention import Reading
from tuner.engines import peak_kernels
from tuner.engines.peak_kernels import PeakKernel
from tuner.errors import WorkError


def run_at(flops: float, bandwidth: float) -> Callable[[PeakKernel], Callable[[], float]]:
    """Return kernels that reach given operations and bytes per second in their third sample."""

    def build(kernel: PeakKernel) -> Callable[[], float]:
        is_read = any("turn" in line for line in kernel.body)
        secs = kernel.amount / (bandwidth if is_read else flops)
        numbers = count()
        return lambda: secs if next(numbers) == 2 else 2.0 * secs

    return build


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


def test_disturbed_samples_give_no_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for a core show less than the device can do."""
    waited = count()
    monkeypatch.setattr(cpu_contention, "read", lambda: Reading(float(next(waited)), 0, 0))

    with pytest.raises(WorkError, match="other processes use the cores"):
        peak_kernels.measure(run_at(1e11, 1e10))
