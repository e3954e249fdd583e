"""Objectives: f1, its gradient, and the registry."""

import numpy as np
import pytest

from scheduler import objectives
from scheduler.arrays import Ints
from scheduler.errors import SchedulerError, UnknownObjectiveError
from scheduler.objectives import make_objective, register

WEIGHTS = np.array([3, 1, 7])


def test_weighted_sum_adds_up_the_network() -> None:
    """3 * 0.5 + 1 * 2 + 7 * 0.25 seconds."""
    assert make_objective("weighted_sum", WEIGHTS).value(np.array([0.5, 2.0, 0.25])) == 5.25


@pytest.mark.parametrize("name", sorted(objectives.OBJECTIVES))
def test_gradient_matches_finite_differences(name: str) -> None:
    """Central differences agree for every registered objective."""
    objective = make_objective(name, WEIGHTS)
    latencies = np.random.default_rng(0).uniform(1e-4, 1e-2, size=3)
    steps = np.diag(latencies * 1e-4)

    slopes = [
        (objective.value(latencies + step) - objective.value(latencies - step)) / (2 * step.sum())
        for step in steps
    ]

    assert objective.gradient(latencies) == pytest.approx(slopes, rel=1e-6)


def test_gradient_is_finite_while_latencies_are_missing() -> None:
    """A task that never ran does not spoil the others."""
    gradient = make_objective("weighted_sum", WEIGHTS).gradient(np.array([1.0, np.inf, 1.0]))

    assert np.isfinite(gradient).all()


def test_gradient_refuses_other_tasks() -> None:
    """Latencies of another network are an error, not a broadcast."""
    with pytest.raises(SchedulerError, match=r"weights \(3,\), latencies \(1,\)"):
        make_objective("weighted_sum", WEIGHTS).gradient(np.ones(1))


def test_an_unknown_name_lists_the_known_ones() -> None:
    """The error is enough to fix the command line."""
    with pytest.raises(
        UnknownObjectiveError, match="no objective is named 'f9'; known: weighted_sum"
    ):
        make_objective("f9", WEIGHTS)


def test_a_custom_objective_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registering adds a name once; options reach the factory."""
    monkeypatch.setattr(objectives, "OBJECTIVES", {})

    @register("scaled")
    def scaled(weights: Ints, *, factor: int) -> objectives.Objective:
        return objectives.WeightedSum(weights * factor)

    assert make_objective("scaled", WEIGHTS, factor=2).value(np.ones(3)) == 22.0
    with pytest.raises(SchedulerError, match="'scaled' is already registered"):
        register("scaled")(scaled)
