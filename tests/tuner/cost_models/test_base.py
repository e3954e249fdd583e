"""Labels and checks of training sets."""

import numpy as np
import pytest

from tuner.cost_models import TrainingSet


def make_samples(latencies: list[float], tasks: list[int]) -> TrainingSet:
    """Return samples with irrelevant features."""
    features = [np.ones((1, 4), np.float32)] * len(latencies)
    return TrainingSet(features, np.array(latencies, np.float64), np.array(tasks, np.int64))


@pytest.mark.parametrize(
    ("latencies", "tasks", "labels"),
    [
        ([], [], []),
        # Each task has its own best trial, whatever its scale.
        ([1.0, 2.0, 1e-6, 4e-6], [5, 5, -1, -1], [1.0, 0.5, 1.0, 0.25]),
        # A failed trial is worth nothing, next to others or alone.
        ([1.0, np.inf, np.inf], [0, 0, 1], [1.0, 0.0, 0.0]),
    ],
)
def test_throughputs(latencies: list[float], tasks: list[int], labels: list[float]) -> None:
    """Throughput is relative to the best of the same task."""
    np.testing.assert_array_equal(make_samples(latencies, tasks).throughputs(), labels)


@pytest.mark.parametrize("latency", [0.0, -1.0, np.nan])
def test_impossible_latency_is_refused(latency: float) -> None:
    """A latency is positive; a failure is inf."""
    with pytest.raises(ValueError, match="must be positive"):
        make_samples([1.0, latency], [0, 0])


def test_lengths_must_agree() -> None:
    """Every sample needs a latency and a task."""
    with pytest.raises(ValueError, match="as many latencies and tasks"):
        make_samples([1.0, 2.0], [0])
