"""Tables, curves and recordings for the scheduler's tests."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from scheduler.allocator import Allocator, GreedySettings
from scheduler.allocators import make_allocator
from scheduler.arrays import Ints
from scheduler.forecasts.curves import Curves
from scheduler.objectives import Networks, make_objective
from scheduler.replay import MakeAllocator, RecordedTask, Recording
from scheduler.state import TaskTable

INF = float("inf")
# A busy machine must not fail a test, nor another run find another example.
REPEATABLE = settings(deadline=None, derandomize=True)


@st.composite
def histories(
    draw: st.DrawFn, *, min_rounds: int = 0, max_rounds: int = 6
) -> tuple[list[float], list[int]]:
    """Generate the best latency and the trials of each round of one task."""
    n_rounds = draw(st.integers(min_rounds, max_rounds))
    n_failing = draw(st.integers(0, n_rounds))
    secs = draw(st.one_of(st.just(0.0), st.floats(1e-7, 1e2)))
    best = [INF] * n_failing
    for _ in range(n_rounds - n_failing):
        best.append(secs)
        secs *= draw(st.sampled_from([1.0, 1.0, 0.999, 0.7, 0.01, 0.0]))
    return best, draw(st.lists(st.integers(0, 64), min_size=n_rounds, max_size=n_rounds))


@st.composite
def curves(draw: st.DrawFn, *, n_tasks: int | None = None) -> Curves:
    """Generate the curves of a few tasks: empty, failing, single, flat, falling, down to zero."""
    n_tasks = n_tasks or draw(st.integers(1, 7))
    drawn = draw(st.lists(histories(), min_size=n_tasks, max_size=n_tasks))
    return Curves.of([best for best, _ in drawn], [n_trials for _, n_trials in drawn])


@st.composite
def tables(draw: st.DrawFn) -> TaskTable:
    """Generate any legal table: curves, dead and failing tasks, groups, costs, rounds in flight."""
    points = draw(curves())
    n_tasks = points.n_tasks

    def column(elements: st.SearchStrategy[Any]) -> np.ndarray[Any, Any]:
        return np.array(draw(st.lists(elements, min_size=n_tasks, max_size=n_tasks)))

    def maybe(elements: st.SearchStrategy[Any]) -> np.ndarray[Any, Any] | None:
        return column(elements) if draw(st.booleans()) else None

    secs = st.one_of(st.just(INF), st.just(0.0), st.floats(1e-7, 1e2))
    best = points.last(points.best_secs, INF)
    as_recorded = draw(st.booleans())
    return TaskTable(
        weights=column(st.integers(0, 50)),
        flop=column(st.one_of(st.just(0.0), st.floats(1.0, 1e13))),
        best_secs=best if as_recorded else column(secs).astype(np.float64),
        window_secs=best + column(secs),
        n_rounds=np.diff(points.offsets) if as_recorded else column(st.integers(0, 20)),
        n_trials=column(st.integers(0, 500)),
        n_failed_rounds=column(st.integers(0, 70)),
        rounds_since_pick=column(st.integers(0, 300)),
        alive=column(st.booleans()),
        similarity_groups=maybe(st.integers(0, n_tasks - 1)),
        secs_per_trial=maybe(st.one_of(st.just(0.0), st.just(INF), st.floats(1e-6, 1e6))),
        n_in_flight=maybe(st.integers(0, 3)),
        curves=points,
    )


def permuted(table: TaskTable, order: Ints) -> TaskTable:
    """Return the same tasks in another order: row i is the former row order[i]."""
    columns = {
        name: column[order]
        for name, column in vars(table).items()
        if column is not None and name != "curves"
    }
    old = table.curves
    return TaskTable(**columns, curves=old and permuted_curves(old, order))


def permuted_curves(old: Curves, order: Ints) -> Curves:
    """Return the same curves in another order."""
    bounds = [(int(old.offsets[i]), int(old.offsets[i + 1])) for i in order]
    pieces = [np.arange(start, stop) for start, stop in bounds]
    points = np.concatenate(pieces)
    offsets = np.concatenate(([0], np.cumsum([len(piece) for piece in pieces])))
    return Curves(old.best_secs[points], old.n_trials[points], offsets)


def of_weights(name: str, greedy: GreedySettings | None = None, seed: int = 7) -> MakeAllocator:
    """Return a factory of an allocator, by name, for the sum over the tasks' weights."""

    def build(weights: Ints) -> Allocator:
        objective = make_objective("weighted_sum", Networks.single(weights))
        return make_allocator(name, objective, seed, greedy)

    return build


def recorded(
    best_secs: Iterable[float],
    *,
    weight: int = 1,
    n_trials: int = 16,
    secs: float = 1.0,
    name: str = "task",
) -> RecordedTask:
    """Return a task whose rounds all took the same trials and time."""
    best = tuple(float(secs) for secs in best_secs)
    n_rounds = len(best)
    return RecordedTask(name, weight, 1e9, name, (n_trials,) * n_rounds, best, (secs,) * n_rounds)


def power_laws(n_tasks: int, n_rounds: int, seed: int) -> Recording:
    """Return a network whose latencies fall randomly, on average as a power of the trials."""
    draws = np.random.default_rng(seed)
    trials = 8.0 + 16.0 * np.arange(1, n_rounds + 1)
    tasks = []
    for index in range(n_tasks):
        exponent = draws.gamma(2.0, 0.15)
        # Improvements of 10 % each, at a rate that makes the exponent their mean.
        n_improved = draws.poisson(exponent / 0.1 * np.diff(np.log(trials)))
        falls = np.concatenate(([0.0], np.cumsum(n_improved * 0.1)))
        start = draws.lognormal(-7.0, 1.0)
        weight = int(draws.integers(1, 12))
        tasks.append(recorded(start * np.exp(-falls), weight=weight, name=f"task-{index}"))
    return Recording("power-laws", tuple(tasks))
