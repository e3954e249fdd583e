"""Objectives: values, gradients, satisfied networks, and the registry."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scheduler import objectives
from scheduler.allocators import make_allocator
from scheduler.arrays import Floats
from scheduler.errors import SchedulerError, UnknownObjectiveError
from scheduler.forecasts.curves import Curves
from scheduler.objectives import (
    EarlyStop,
    Networks,
    Objective,
    make_objective,
    register,
    rounds_since_improvement,
)
from scheduler.replay import Recording, replay
from scheduler.state import TaskTable
from tests.scheduler.make import recorded

INF = float("inf")
MakeTable = Callable[..., TaskTable]

# Tasks 1 and 2 are shared.
NETWORKS = Networks(("cats", "dogs", "birds"), np.array([[3, 1, 2, 0], [0, 2, 1, 4], [1, 0, 5, 2]]))
LATENCIES = np.array([0.5, 2.0, 0.25, 1.0])
TOTALS = {"cats": 4.0, "dogs": 8.25, "birds": 3.75}

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("weighted_sum", {}),
    ("weighted_sum", {"importance": {"cats": 2.0, "birds": 0.5}}),
    ("requirements", {"required_secs": {"cats": 1.0, "dogs": 1.0, "birds": 1.0}}),  # all missed
    ("requirements", {"required_secs": {"cats": 1.0, "dogs": 9.0}}),  # dogs is met
    ("requirements", {"required_secs": {"cats": 9.0, "dogs": 9.0, "birds": 9.0}}),  # all are
    ("geometric_mean", {}),
    ("geometric_mean", {"baseline_secs": {"cats": 8.0, "dogs": 2.0}}),
    ("early_stop", {}),
    ("early_stop", {"patience": 1}),
]


def slopes(objective: Objective, latencies: Floats) -> list[float]:
    """Return central differences, one per task."""
    steps = np.diag(latencies * 1e-4)
    return [
        (objective.value(latencies + step) - objective.value(latencies - step)) / (2 * step.sum())
        for step in steps
    ]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("weighted_sum", {}, 16.0),
        ("weighted_sum", {"importance": {"cats": 2.0, "birds": 0.5}}, 8.0 + 8.25 + 1.875),
        ("requirements", {"required_secs": {"cats": 5.0, "dogs": 8.0}}, 5.0 + 8.25 + 3.75),
        (
            "geometric_mean",
            {"baseline_secs": {"cats": 8.0, "dogs": 16.5, "birds": 7.5}},
            -2.0,
        ),
        ("early_stop", {}, 16.0),
    ],
)
def test_values_by_hand(name: str, options: dict[str, Any], expected: float) -> None:
    """Totals are 4, 8.25 and 3.75 seconds."""
    assert NETWORKS.totals(LATENCIES).tolist() == list(TOTALS.values())
    assert make_objective(name, NETWORKS, **options).value(LATENCIES) == pytest.approx(expected)


def test_every_objective_is_checked() -> None:
    """A newly registered objective needs a row in the table above."""
    assert {name for name, _ in OPTIONS} == set(objectives.known_objectives())


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_gradient_matches_finite_differences(name: str, options: dict[str, Any]) -> None:
    """Central differences agree; latencies of a coarse clock are finite, other tasks refused."""
    objective = make_objective(name, NETWORKS, **options)

    gradient = objective.gradient(LATENCIES)

    assert gradient == pytest.approx(slopes(objective, LATENCIES), rel=1e-6, abs=1e-9)
    assert (gradient >= 0.0).all()
    assert np.isfinite(objective.gradient(np.zeros(4))).all()
    with pytest.raises(SchedulerError, match=r"weights \(4,\), latencies \(1,\)"):
        objective.gradient(np.ones(1))


def test_early_stop_is_flat_where_tasks_stall() -> None:
    """Below its floor a task changes nothing; above it has the weight of its calls."""
    objective = EarlyStop(NETWORKS, 3, floors=np.array([0.6, 0.0, 0.3, 0.9]))

    gradient = objective.gradient(LATENCIES)

    assert gradient.tolist() == [0.0, 3.0, 0.0, 6.0]
    assert gradient == pytest.approx(slopes(objective, LATENCIES), rel=1e-6)


def test_at_a_kink_the_gradient_is_that_of_improving() -> None:
    """Exactly at a requirement or a floor there is nothing left to gain."""
    met = make_objective("requirements", NETWORKS, required_secs=TOTALS)
    stalled = EarlyStop(NETWORKS, 3, floors=LATENCIES)

    for objective in (met, stalled):
        assert objective.gradient(LATENCIES).tolist() == [0.0] * 4
        assert objective.value(0.9 * LATENCIES) == objective.value(LATENCIES)


@pytest.mark.parametrize(("name", "options"), OPTIONS)
@pytest.mark.parametrize("missing", [[0], [1, 2], [0, 1, 2, 3]])
def test_gradient_is_finite_while_latencies_are_missing(
    name: str, options: dict[str, Any], missing: list[int]
) -> None:
    """Tasks that never ran affect neither the others nor the value."""
    latencies = LATENCIES.copy()
    latencies[missing] = INF
    objective = make_objective(name, NETWORKS, **options)

    gradient = objective.gradient(latencies)

    assert objective.value(latencies) == INF
    assert np.isfinite(gradient).all()
    assert (gradient >= 0.0).all()


def test_an_unknown_name_lists_the_known_ones() -> None:
    """The error lists the valid names."""
    with pytest.raises(UnknownObjectiveError, match="no objective is named 'f9'; known: early"):
        make_objective("f9", NETWORKS)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "weighted_sum",
            {"patience": 3},
            "'weighted_sum' does not take patience; it takes importance",
        ),
        ("requirements", {}, "needs required_secs for some network"),
        ("requirements", {"required_secs": {}}, "needs required_secs for some network"),
        ("requirements", {"required_secs": {"cows": 1.0}}, "required_secs of 'cows', which is no"),
        ("weighted_sum", {"importance": {"cows": 1.0}}, "its networks: cats, dogs, birds"),
        ("geometric_mean", {"baseline_secs": {"cows": 1.0}}, "baseline_secs of 'cows'"),
        ("early_stop", {"patience": 0}, "patience must be at least 1, got 0"),
        ("early_stop", {"patience": -2}, "patience must be at least 1, got -2"),
        ("early_stop", {"patience": float("nan")}, "patience must be at least 1, got nan"),
        ("early_stop", {"patience": "many"}, "patience must be at least 1, got many"),
    ],
)
def test_invalid_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    """Unknown options, missing ones and unknown networks are named."""
    with pytest.raises(SchedulerError, match=message):
        make_objective(name, NETWORKS, **options)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("weighted_sum", "importance"),
        ("requirements", "required_secs"),
        ("geometric_mean", "baseline_secs"),
    ],
)
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), INF, "fast", None])
def test_numbers_must_be_positive_and_finite(name: str, option: str, value: Any) -> None:
    """Each number of a network is checked."""
    with pytest.raises(SchedulerError):
        make_objective(name, NETWORKS, **{option: {"dogs": value}})
    if isinstance(value, float):
        with pytest.raises(SchedulerError, match=f"{option} of 'dogs' must be finite .* {value}"):
            make_objective(name, NETWORKS, **{option: {"dogs": value}})


@pytest.mark.parametrize(
    ("names", "calls", "message"),
    [
        ((), np.zeros((0, 3), np.int64), "needs at least one network"),
        (("a", "a"), [[1], [2]], "networks must have different names, got a, a"),
        (("a",), np.zeros((1, 0), np.int64), r"calls must have shape \(n_tasks,\)"),
        (("a", "b"), [[1, 2]], r"calls must have shape \(2, n_tasks\), got \(1, 2\)"),
        (("a",), [1, 2], r"calls must have shape \(1, n_tasks\), got \(2,\)"),
        (("a",), [[1, -2]], "calls must be non-negative numbers, got -2"),
        (("a",), [[1.0, float("nan")]], "calls must hold integers"),
    ],
)
def test_invalid_networks_are_refused(names: tuple[str, ...], calls: Any, message: str) -> None:
    """Networks need distinct names and valid calls."""
    with pytest.raises(SchedulerError, match=message):
        Networks(names, calls)


def test_a_network_without_tasks_attracts_no_trials() -> None:
    """It adds 0 to a sum, meets any requirement, and cannot have a speedup."""
    networks = Networks(("full", "empty"), np.array([[2, 1], [0, 0]]))
    required = {"full": 0.5, "empty": 0.5}

    for name, options in (("weighted_sum", {}), ("requirements", {"required_secs": required})):
        gradient = make_objective(name, networks, **options).gradient(np.ones(2))
        assert gradient.tolist() == [2.0, 1.0]
    with pytest.raises(SchedulerError, match="'empty' calls no task"):
        make_objective("geometric_mean", networks)


def test_a_custom_objective_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registration adds a name once, and options reach the factory."""
    monkeypatch.setattr(objectives, "OBJECTIVES", {})

    @register("scaled")
    def scaled(networks: Networks, *, factor: float) -> Objective:
        return objectives.WeightedSum(networks, np.full(len(networks.names), factor))

    assert make_objective("scaled", NETWORKS, factor=2.0).value(LATENCIES) == 32.0
    with pytest.raises(SchedulerError, match="'scaled' is already registered"):
        register("scaled")(scaled)


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([], 0),
        ([4.0], 0),
        ([4.0, 4.0, 4.0], 2),
        ([4.0, 3.0, 3.0], 1),
        ([4.0, 3.0, 2.0], 0),
        ([INF, INF], 2),
        ([INF, 4.0], 0),  # a first success is an improvement here
        ([INF, 4.0, 4.0], 1),
    ],
)
def test_rounds_since_improvement(history: list[float], expected: int) -> None:
    """Rounds are counted within a task, independent of its neighbours."""
    curves = Curves.of(
        [[9.0, 9.0], history, [], [8.0, 1.0]], [[4, 4], [4] * len(history), [], [4, 4]]
    )

    assert rounds_since_improvement(curves).tolist() == [1, expected, 0, 0]


def test_early_stop_needs_curves(make_table: MakeTable) -> None:
    """Stalls cannot be detected without a history."""
    objective = make_objective("early_stop", Networks.single(np.ones(3, np.int64)))

    with pytest.raises(SchedulerError, match="early_stop needs a table with curves"):
        objective.at(make_table(3))


def test_a_failing_task_does_not_stall(make_table: MakeTable) -> None:
    """Rounds in which nothing ran are failures, which back-off handles."""
    curves = Curves.of([[INF] * 9, [2.0] * 9], [[4] * 9] * 2)
    table = make_table(2, best_secs=[INF, 2.0], n_rounds=[9, 9], curves=curves)
    objective = make_objective("early_stop", Networks.single(np.array([1, 1])), patience=3)

    assert objective.at(table).gradient(table.best_secs).tolist() == [1.0, 0.0]


def test_a_network_that_meets_its_requirement_gets_no_trials() -> None:
    """Its own tasks get no more rounds; when all networks are fast enough the job ends."""
    falling = [10.0 / (1 + n) for n in range(40)]
    tasks = [recorded(falling, name=str(index)) for index in range(4)]
    networks = Networks(("easy", "hard"), np.array([[2, 1, 0, 0], [0, 1, 2, 1]]))
    objective = make_objective("requirements", networks, required_secs={"easy": 6.0, "hard": 2.0})
    recording = Recording("two", tuple(tasks))

    done = replay(recording, lambda _: make_allocator("gradient", objective, 3))

    given, after = np.zeros(4, np.int64), []
    latencies = np.full(4, INF)
    for task in done.picks:
        after.append((int(task), networks.totals(latencies)[0] <= 6.0))
        given[task] += 1
        latencies[task] = falling[given[task] - 1]
    assert (0, True) not in after
    assert (1, True) in after
    assert (networks.totals(latencies) <= [6.0, 2.0]).all()
    assert (given < 40).all()


def test_nothing_is_picked_when_every_requirement_is_met(make_table: MakeTable) -> None:
    """The job has nothing left to do."""
    table = make_table(3, best_secs=[1.0] * 3)
    objective = make_objective(
        "requirements", Networks.single(table.weights), required_secs={"network": 3.0}
    )

    assert make_allocator("gradient", objective, 0).choose(table, sequence=0, n_trials=8) is None


def test_a_stalled_task_gets_no_trial_after_its_patience() -> None:
    """A task ends after three rounds without improvement; the job ends when all tasks stall."""
    heavy = recorded([9.0] * 30, weight=100, name="stalled")
    falling = recorded([9.0 / (1 + n) for n in range(10)] + [0.9] * 20, name="falling")
    networks = Networks.single(np.array([100, 1]))
    objective = make_objective("early_stop", networks, patience=3)
    recording = Recording("two", (heavy, falling))

    done = replay(recording, lambda _: make_allocator("gradient", objective, 3))

    assert np.bincount(done.picks).tolist() == [4, 13]
