"""Simulated tasks and the search on them."""

import json
from dataclasses import replace

import pytest

from benchmarks.simulation import kernels
from benchmarks.simulation.kernels import Kernel
from scheduler.replay import Recording
from tuner.engines.base import MeasuredTrace, SearchRequest

ROUND = 64
KERNEL = Kernel((8e-3, 4e-3, 2e-3), cost=1.5)


def request(n_measured: int, seed: int = 1) -> SearchRequest:
    """Return a request for a round of candidates after ``n_measured`` trials."""
    measured = tuple(MeasuredTrace("", str(number), None) for number in range(n_measured))
    return SearchRequest(KERNEL.as_ir(7), "", measured, b"", ROUND, 0, 0, seed)


@pytest.mark.parametrize(("n_rounds", "secs"), [(0, 8e-3), (1, 4e-3), (2, 2e-3), (9, 2e-3)])
def test_the_best_of_a_round_comes_close_to_the_recorded_curve(n_rounds: int, secs: float) -> None:
    """It is within a tenth and never below the curve; the others are above it."""
    candidates = kernels.propose(request(n_rounds * ROUND), ROUND)

    latencies = sorted(
        kernels.run(kernels.artifact_of(candidate.trace))[0] for candidate in candidates
    )
    assert secs <= latencies[0] < 1.1 * secs
    assert latencies[ROUND // 2] > 1.2 * secs


def test_candidates_are_a_function_of_the_request() -> None:
    """Equal requests give equal candidates, another seed gives none of them."""
    first, again = kernels.propose(request(0), ROUND), kernels.propose(request(0), ROUND)
    other = kernels.propose(request(0, seed=2), ROUND)

    assert first == again
    assert len({candidate.trace for candidate in (*first, *other)}) == 2 * ROUND
    assert len({candidate.module_hash for candidate in (*first, *other)}) == 2 * ROUND


def test_a_trace_is_json_with_the_cost_of_its_run() -> None:
    """Records of a simulation can therefore be exported."""
    trace = kernels.propose(request(0), ROUND)[0].trace

    assert isinstance(json.loads(trace), str)
    assert kernels.run(kernels.artifact_of(trace))[1] == KERNEL.cost


def test_an_unscheduled_build_runs_too() -> None:
    """References need it."""
    assert kernels.run(kernels.artifact_of("")) == (1.0, 1.0)


def test_tasks_without_a_latency_are_left_out(curves: list[Recording]) -> None:
    """They have no curve to follow."""
    task = curves[0].tasks[1]
    dead = replace(task, best_secs=(float("inf"),) * len(task.best_secs))

    assert kernels.usable([task, dead]) == [task]


def test_average_cost_is_one(curves: list[Recording]) -> None:
    """Costs of trials are multiples of the average."""
    tasks = kernels.usable(curves[0].tasks)
    mean = sum(map(kernels.secs_per_trial, tasks)) / len(tasks)

    costs = [Kernel.of(task, 1.0, mean).cost for task in tasks]
    assert sum(costs) / len(costs) == pytest.approx(1.0)
