"""What every allocator promises, and how the gradient's picks come about."""

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.allocator import Allocator, GradientAllocator
from scheduler.errors import SchedulerError
from scheduler.gradient import GradientSettings, estimate_gradient
from scheduler.objectives import WeightedSum
from scheduler.round_robin import RoundRobinAllocator
from scheduler.state import TaskTable

INF = float("inf")
# A busy machine must not fail a test, nor another run find another example.
REPEATABLE = settings(deadline=None, derandomize=True)
GREEDY = GradientSettings(epsilon=0.0)
MakeTable = Callable[..., TaskTable]


def gradient(
    table: TaskTable, settings: GradientSettings | None = None, seed: int = 7
) -> GradientAllocator:
    """The gradient over the table's own weights."""
    return GradientAllocator(settings or GradientSettings(), WeightedSum(table.weights), seed)


def round_robin(_: TaskTable) -> RoundRobinAllocator:
    """The baseline."""
    return RoundRobinAllocator()


@pytest.fixture(params=[gradient, round_robin])
def make_allocator(request: pytest.FixtureRequest) -> Callable[[TaskTable], Allocator]:
    """Builds each allocator in turn for a table."""
    built: Callable[[TaskTable], Allocator] = request.param
    return built


@st.composite
def tables(draw: st.DrawFn) -> TaskTable:
    """Any legal table: missing, zero and falling latencies, dead and failing tasks, groups."""
    n_tasks = draw(st.integers(1, 7))

    def column(elements: st.SearchStrategy[Any]) -> np.ndarray[Any, Any]:
        return np.array(draw(st.lists(elements, min_size=n_tasks, max_size=n_tasks)))

    secs = st.one_of(st.just(INF), st.just(0.0), st.floats(1e-7, 1e2))
    best = column(secs).astype(np.float64)
    grouped = draw(st.booleans())
    return TaskTable(
        weights=column(st.integers(0, 50)),
        flop=column(st.one_of(st.just(0.0), st.floats(1.0, 1e13))),
        best_secs=best,
        window_secs=best + column(secs),
        n_rounds=column(st.integers(0, 20)),
        n_trials=column(st.integers(0, 500)),
        n_failed_rounds=column(st.integers(0, 70)),
        rounds_since_pick=column(st.integers(0, 300)),
        alive=column(st.booleans()),
        similarity_groups=column(st.integers(0, n_tasks - 1)) if grouped else None,
    )


@pytest.mark.parametrize(("sequence", "n_trials"), [(-1, 8), (0, 0)])
def test_misuse_is_refused(
    make_table: MakeTable,
    make_allocator: Callable[[TaskTable], Allocator],
    sequence: int,
    n_trials: int,
) -> None:
    """Picks are numbered from 0 and spend something."""
    table = make_table()
    with pytest.raises(SchedulerError, match="must be at least"):
        make_allocator(table).choose(table, sequence=sequence, n_trials=n_trials)


def test_nothing_alive_nothing_chosen(
    make_table: MakeTable, make_allocator: Callable[[TaskTable], Allocator]
) -> None:
    """The job is done when every task is."""
    table = make_table(alive=[False] * 3)

    assert make_allocator(table).choose(table, sequence=0, n_trials=8) is None


@pytest.mark.parametrize("build", [gradient, round_robin])
@REPEATABLE
@given(table=tables(), sequence=st.integers(0, 10**6), n_trials=st.integers(1, 64))
def test_decisions_are_alive_repeatable_and_json(
    build: Callable[[TaskTable], Allocator], table: TaskTable, sequence: int, n_trials: int
) -> None:
    """Never a dead task, never NaN, and the same answer when asked again."""
    decision = build(table).choose(table, sequence=sequence, n_trials=n_trials)

    assert decision == build(table).choose(table, sequence=sequence, n_trials=n_trials)
    assert (decision is None) == (not table.alive.any())
    if decision is not None:
        assert table.alive[decision.task]
        assert decision.n_trials == n_trials
        json.dumps(decision.terms, allow_nan=False)


@REPEATABLE
@given(tables())
def test_no_table_makes_nan(table: TaskTable) -> None:
    """Inf, zero and one-sample latencies give finite terms and gains of at least 0."""
    terms = estimate_gradient(table, table.weights.astype(np.float64), GradientSettings())

    assert all(np.isfinite(array).all() for array in vars(terms).values())
    assert (terms.gain >= 0.0).all()
    assert (terms.gain[~table.measured] == 0.0).all()


@REPEATABLE
@given(tables(), st.integers(-30, 30), st.integers(0, 1000))
def test_the_unit_of_latency_does_not_matter(table: TaskTable, power: int, sequence: int) -> None:
    """Rescaling every latency (exactly, by a power of two) changes no pick."""
    columns = vars(table) | {
        "best_secs": table.best_secs * 2.0**power,
        "window_secs": table.window_secs * 2.0**power,
    }

    before = gradient(table).choose(table, sequence=sequence, n_trials=8)
    after = gradient(table).choose(TaskTable(**columns), sequence=sequence, n_trials=8)

    assert (before and (before.task, before.reason)) == (after and (after.task, after.reason))


@REPEATABLE
@given(st.integers(1, 8), st.randoms(use_true_random=False))
def test_the_order_of_tasks_does_not_matter(n_tasks: int, random: Any) -> None:
    """Shuffling the rows of a table without ties shuffles the pick along."""
    draws = np.random.default_rng(random.getrandbits(32))
    columns: dict[str, Any] = {
        "weights": draws.integers(1, 20, n_tasks),
        "flop": draws.uniform(1e6, 1e9, n_tasks),
        "best_secs": draws.uniform(1e-4, 1e-2, n_tasks),
        "window_secs": draws.uniform(1e-2, 2e-2, n_tasks),
        "n_rounds": draws.integers(random.choice([0, 1]), 9, n_tasks),
        "n_trials": draws.integers(0, 99, n_tasks),
        "n_failed_rounds": np.zeros(n_tasks, np.int64),
        "rounds_since_pick": draws.permutation(n_tasks),
        "alive": np.ones(n_tasks, np.bool_),
    }
    order = draws.permutation(n_tasks)
    table = TaskTable(**columns)
    shuffled = TaskTable(**{name: column[order] for name, column in columns.items()})

    before = gradient(table, GREEDY).choose(table, sequence=0, n_trials=8)
    after = gradient(shuffled, GREEDY).choose(shuffled, sequence=0, n_trials=8)

    assert before is not None
    assert after is not None
    assert order[after.task] == before.task
    assert after.reason == before.reason


def test_warm_up_visits_every_task_once_largest_first(make_table: MakeTable) -> None:
    """Order is weight x flop, ties to the lowest row; rounds are capped."""
    weights, flop = [1, 4, 2, 1], [3e6, 1e6, 2e6, 9e6]
    n_rounds, picks = np.zeros(4, np.int64), []
    settings = GradientSettings(warmup_trials=5)
    for sequence in range(4):
        table = make_table(4, weights=weights, flop=flop, n_rounds=n_rounds.copy())
        decision = gradient(table, settings).choose(table, sequence=sequence, n_trials=16)
        assert decision is not None
        picks.append((decision.task, decision.reason, decision.n_trials))
        n_rounds[decision.task] += 1

    assert picks == [(task, "warm_up", 5) for task in (3, 1, 2, 0)]


def test_warm_up_never_exceeds_what_is_left(make_table: MakeTable) -> None:
    """A large warm-up round is cut to the trials offered."""
    table = make_table(n_rounds=[0, 0, 0])

    decision = gradient(table, GradientSettings(warmup_trials=64)).choose(
        table, sequence=0, n_trials=3
    )

    assert decision is not None
    assert decision.n_trials == 3


def test_the_largest_gain_wins_and_says_why(make_table: MakeTable) -> None:
    """Weights 1, 5, 4 over equal latencies: row 1, then row 2, with all terms."""
    table = make_table(weights=[1, 5, 4], best_secs=[2.0] * 3, window_secs=[2.0] * 3)

    decision = gradient(table, GREEDY).choose(table, sequence=3, n_trials=16)

    assert decision is not None
    assert (decision.task, decision.n_trials, decision.reason) == (1, 16, "gradient")
    assert decision.terms == pytest.approx(
        {
            "backward": 0.0,
            "optimistic": -2.0,
            "similarity": 2.0,
            "objective_weight": 5.0,
            "gain": 8.0,
            "epsilon_draw": np.random.default_rng([7, 3]).random(),
            "runner_up": 2,
            "runner_up_gain": 6.4,
        }
    )


def test_ties_go_to_the_lowest_row_and_a_lone_task_has_no_runner_up(
    make_table: MakeTable,
) -> None:
    """Dead and failed tasks are no runners-up."""
    tied = make_table(3)
    lone = make_table(3, alive=[False, True, False])

    first = gradient(tied, GREEDY).choose(tied, sequence=0, n_trials=8)
    only = gradient(lone, GREEDY).choose(lone, sequence=0, n_trials=8)

    assert first is not None
    assert (first.task, first.terms["runner_up"]) == (0, 1)
    assert only is not None
    assert only.task == 1
    assert "runner_up" not in only.terms


def test_epsilon_reaches_every_task_with_a_gain(make_table: MakeTable) -> None:
    """Uniform picks land on each promising task about equally often, and on no other."""
    table = make_table(5, weights=[1000, 1, 1, 0, 1], alive=[True, True, True, True, False])
    allocator = gradient(table, GradientSettings(epsilon=0.5))

    decisions = [allocator.choose(table, sequence=i, n_trials=8) for i in range(600)]
    explored = [d.task for d in decisions if d is not None and d.reason == "epsilon"]

    counts = np.bincount(explored, minlength=5)
    assert len(explored) == pytest.approx(300, abs=50)
    assert counts[3] == counts[4] == 0
    assert (counts[:3] > 70).all()


def test_the_seed_and_the_sequence_make_the_draw(make_table: MakeTable) -> None:
    """Draws differ between picks and between seeds."""
    table = make_table()
    draws = {
        decision.terms["epsilon_draw"]
        for seed in range(3)
        for sequence in range(3)
        if (decision := gradient(table, seed=seed).choose(table, sequence=sequence, n_trials=8))
    }

    assert len(draws) == 9


def test_a_retry_shows_its_back_off(make_table: MakeTable) -> None:
    """The numbers behind a retry are on record."""
    table = make_table(2, best_secs=[INF, 1.0], n_failed_rounds=[2, 0], rounds_since_pick=[3, 0])

    decision = gradient(table).choose(table, sequence=9, n_trials=8)

    assert decision is not None
    assert (decision.task, decision.reason) == (0, "retry")
    assert decision.terms == {"n_failed_rounds": 2.0, "rounds_since_pick": 3.0, "backoff": 2.0}


def test_round_robin_takes_turns(make_table: MakeTable) -> None:
    """Fewest rounds first, ties to the lowest row, dead tasks skipped."""
    table = make_table(4, n_rounds=[3, 2, 2, 0], alive=[True, True, True, False])

    decision = RoundRobinAllocator().choose(table, sequence=0, n_trials=8)

    assert decision is not None
    assert (decision.task, decision.reason, decision.terms) == (1, "round_robin", {"n_rounds": 2.0})


def test_a_negative_seed_is_refused(make_table: MakeTable) -> None:
    """The message names the seed, which numpy's own would not."""
    with pytest.raises(SchedulerError, match="seed must be at least 0, got -1"):
        gradient(make_table(), seed=-1)


def test_a_decision_over_many_tasks_is_fast(make_table: MakeTable) -> None:
    """100,000 live tasks in groups: well under 50 ms."""
    n_tasks = 100_000
    draws = np.random.default_rng(0)
    table = make_table(
        n_tasks,
        best_secs=draws.uniform(1e-4, 1e-2, n_tasks),
        similarity_groups=draws.integers(0, 1000, n_tasks),
    )
    allocator = gradient(table)
    elapsed = []
    for sequence in range(5):
        start = time.perf_counter()
        allocator.choose(table, sequence=sequence, n_trials=8)
        elapsed.append(time.perf_counter() - start)

    assert min(elapsed) < 0.05
