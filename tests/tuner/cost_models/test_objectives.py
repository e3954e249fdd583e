"""Gradients match their losses; pairs stay within a task and a bound."""

from collections.abc import Callable

import numpy as np
import pytest

from tuner.cost_models import objectives
from tuner.cost_models.base import Floats

LABELS = np.array([1.0, 0.4, 0.0, 1.0, 0.7])
TASKS = np.array([0, 0, 0, 1, 1])


def squared_error(scores: Floats) -> float:
    """Return half the squared error, weighted by the label or 0.3."""
    return float((0.5 * np.maximum(LABELS, 0.3) * (scores - LABELS) ** 2).sum())


def logistic(scores: Floats) -> float:
    """Return the logistic loss over the pairs of both tasks."""
    pairs = [(0, 1), (0, 2), (1, 2), (3, 4)]
    return float(
        sum((LABELS[f] - LABELS[s]) * np.log1p(np.exp(scores[s] - scores[f])) for f, s in pairs)
    )


def test_throughput_gradient() -> None:
    """The gradient matches differences of the weighted squared error."""
    check_gradient(objectives.throughput(LABELS), squared_error)


def test_ranking_gradient() -> None:
    """The gradient matches differences of the pairwise logistic loss."""
    pairs = objectives.choose_pairs(LABELS, TASKS, per_sample=8, seed=0)
    check_gradient(objectives.ranking(LABELS, *pairs), logistic)


def check_gradient(objective: objectives.Objective, loss: Callable[[Floats], float]) -> None:
    """Compare first and second derivatives with central differences."""
    scores = np.array([0.3, -0.2, 0.5, 0.0, 1.0])
    step = 1e-4 * np.eye(len(scores))
    gradients, hessians = objective(scores)

    ahead, here, behind = (
        np.array([loss(scores + sign * row) for row in step]) for sign in (1, 0, -1)
    )
    np.testing.assert_allclose(gradients, (ahead - behind) / 2e-4, atol=1e-6)
    np.testing.assert_allclose(hessians, (ahead - 2 * here + behind) / 1e-8, atol=1e-5)


def test_ranking_survives_far_scores() -> None:
    """Wrong scores of any size cause no overflow."""
    pairs = objectives.choose_pairs(LABELS, TASKS, per_sample=8, seed=0)

    gradients, hessians = objectives.ranking(LABELS, *pairs)(-1e6 * LABELS)

    assert np.isfinite(gradients).all()
    assert (hessians > 0).all()


@pytest.mark.parametrize("n_samples", [0, 1, 2, 17, 18, 500])
def test_pairs_stay_within_task_and_bound(n_samples: int) -> None:
    """The faster sample is first, of the same task; pairs grow linearly with the samples."""
    rng = np.random.default_rng(3)
    labels, tasks = rng.random(n_samples), np.arange(n_samples) % 2

    faster, slower = objectives.choose_pairs(labels, tasks, per_sample=4, seed=0)

    assert len(faster) <= 4 * n_samples
    assert (labels[faster] > labels[slower]).all()
    assert (tasks[faster] == tasks[slower]).all()


def test_small_tasks_give_all_their_pairs() -> None:
    """All pairs are used if they are few enough."""
    faster, _ = objectives.choose_pairs(np.arange(9.0), np.zeros(9, np.int64), 4, seed=0)

    assert len(faster) == 9 * 8 // 2
