"""Terms of the gradient, compared with numbers computed by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from scheduler.errors import SchedulerError
from scheduler.gradient import GradientSettings, TvmEstimator, estimate_gradient
from scheduler.state import TaskTable, stale_rounds
from tests.scheduler.make import REPEATABLE, tables

INF = float("inf")
MakeTable = Callable[..., TaskTable]


def test_terms_of_a_task_on_its_own(make_table: MakeTable) -> None:
    """g: 10 -> 4 s in 3 of 8 rounds, weight 5: -2, -0.5, +4 (ignored), gain 5*(0.4+0.4)."""
    table = make_table(1, best_secs=[4.0], window_secs=[10.0], n_rounds=[8], flop=[100.0])

    terms = estimate_gradient(table, np.array([5.0]), GradientSettings())

    assert terms.row(0) == pytest.approx(
        {
            "backward": -2.0,
            "optimistic": -0.5,
            "similarity": 4.0,
            "roof": 0.0,
            "objective_weight": 5.0,
            "gain": 4.0,
        }
    )


def test_a_faster_relative_promises_more_than_the_lifetime_pace(make_table: MakeTable) -> None:
    """Task 1 reaches 100 flop/s, so task 0 should reach 50: 100/50 - 10 = -8 beats -10/4."""
    table = make_table(
        3,
        flop=[100.0, 200.0, 1.0],
        best_secs=[10.0, 2.0, 1e-9],
        window_secs=[10.0, 2.0, 1e-9],
        n_rounds=[4, 4, 4],
        similarity_groups=[0, 0, 2],
    )

    terms = estimate_gradient(table, np.ones(3), GradientSettings())

    assert terms.similarity[0] == pytest.approx(-8.0)
    assert terms.gain[0] == pytest.approx(0.8 * 8.0)
    assert terms.gain[1] == pytest.approx(0.8 * 0.5)


def test_no_task_gains_more_than_it_takes_above_its_roof(make_table: MakeTable) -> None:
    """The hope of 10 s in 4 rounds, of 0.5 s, and of nothing at the roof and below."""
    table = make_table(
        4,
        best_secs=[10.0] * 4,
        window_secs=[10.0] * 4,
        n_rounds=[4] * 4,
        roof_secs=[0.0, 9.5, 10.0, 12.0],
        flop=[0.0] * 4,
    )

    terms = estimate_gradient(table, np.full(4, 3.0), GradientSettings())

    assert terms.optimistic.tolist() == pytest.approx([-2.5, -0.125, 0.0, 0.0])
    assert terms.gain.tolist() == pytest.approx([3.0 * 0.8 * 2.5, 3.0 * 0.8 * 0.125, 0.0, 0.0])
    assert terms.row(1)["roof"] == 9.5


def test_a_fast_relative_lifts_no_roof(make_table: MakeTable) -> None:
    """The step to half of its throughput would save 8 s, of which 0.5 s are above the roof."""
    table = make_table(
        2,
        flop=[100.0, 200.0],
        best_secs=[10.0, 2.0],
        window_secs=[10.0, 2.0],
        n_rounds=[4, 4],
        similarity_groups=[0, 0],
        roof_secs=[9.5, 0.0],
    )

    terms = estimate_gradient(table, np.ones(2), GradientSettings())

    assert terms.similarity[0] == pytest.approx(-8.0)
    assert terms.gain[0] == pytest.approx(0.5)


def test_a_dead_relative_is_still_evidence(make_table: MakeTable) -> None:
    """The throughput of a finished task bounds its group; the task itself has no gain."""
    table = make_table(
        2, best_secs=[10.0, 1.0], n_rounds=[4, 4], alive=[True, False], similarity_groups=[1, 1]
    )

    terms = estimate_gradient(table, np.ones(2), GradientSettings())

    assert terms.similarity.tolist() == pytest.approx([-8.0, 0.0])
    assert terms.gain[1] == 0.0


@pytest.mark.parametrize(
    ("n_rounds", "window_secs", "expected"),
    [
        (1, 4.0, 0.0),  # one sample: no slope
        (2, 6.0, -2.0),  # one step back is all there is
        (3, 6.0, -1.0),
        (9, 7.0, -1.0),  # the full window of three
        (9, INF, 0.0),  # nothing known back then
    ],
)
def test_the_slope_divides_by_the_actual_rounds(
    make_table: MakeTable, n_rounds: int, window_secs: float, expected: float
) -> None:
    """A short history is not diluted to the whole window."""
    table = make_table(1, best_secs=[4.0], window_secs=[window_secs], n_rounds=[n_rounds])

    terms = estimate_gradient(table, np.ones(1), GradientSettings())

    assert terms.backward[0] == pytest.approx(expected)


def test_tasks_without_a_latency_have_no_gradient(make_table: MakeTable) -> None:
    """Unseen, failed and dead rows are all zeros; zero latency and zero flop make no NaN."""
    table = make_table(
        5,
        best_secs=[INF, INF, 1.0, 0.0, 1.0],
        window_secs=[INF, INF, 2.0, 0.0, INF],
        n_rounds=[0, 3, 3, 3, 3],
        flop=[1.0, 1.0, 1.0, 0.0, 0.0],
        alive=[True, True, False, True, True],
        similarity_groups=[0, 0, 0, 0, 0],
    )

    terms = estimate_gradient(table, np.ones(5), GradientSettings())

    assert terms.gain[:4].tolist() == [0.0] * 4
    assert terms.gain[4] > 0.0
    assert all(np.isfinite(array).all() for array in vars(terms).values())


@REPEATABLE
@given(tables())
def test_no_table_makes_nan(table: TaskTable) -> None:
    """Inf, zero and one-sample latencies give finite terms and gains of at least 0."""
    terms = estimate_gradient(table, table.weights.astype(np.float64), GradientSettings())

    assert all(np.isfinite(array).all() for array in vars(terms).values())
    assert (terms.gain >= 0.0).all()
    assert (terms.gain[~table.measured] == 0.0).all()


def test_rounds_in_flight_share_the_step_to_a_relative(make_table: MakeTable) -> None:
    """A task that should catch up by 8 s is not sent to every device for it."""
    table = make_table(
        3,
        best_secs=[10.0, 10.0, 1.0],
        window_secs=[10.0, 10.0, 1.0],
        n_rounds=[4, 4, 4],
        similarity_groups=[0, 0, 0],
        n_in_flight=[0, 1, 0],
    )

    terms = estimate_gradient(table, np.ones(3), GradientSettings())

    assert terms.similarity.tolist() == pytest.approx([-8.0, -4.0, 1.0])
    assert terms.optimistic.tolist() == pytest.approx([-2.5, -2.0, -0.25])
    assert terms.gain[:2].tolist() == pytest.approx([6.4, 3.2])


def test_rounds_without_progress_share_the_step_to_a_relative(make_table: MakeTable) -> None:
    """A task that cannot be as fast as its relative gives way to one that may."""
    table = make_table(
        3,
        best_secs=[10.0, 6.0, 1.0],
        window_secs=[10.0, 6.0, 1.0],
        n_rounds=[24, 24, 24],
        similarity_groups=[0, 0, 0],
        n_stale_rounds=[7, 0, 0],
    )

    terms = estimate_gradient(table, np.ones(3), GradientSettings())

    assert terms.similarity.tolist() == pytest.approx([-1.0, -4.0, 1.0])
    assert terms.gain[0] < terms.gain[1]


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([], 0),
        ([INF, INF], 0),
        ([INF, 4.0], 0),
        ([4.0, 3.0], 0),
        ([4.0, 3.0, 3.0], 1),
        ([4.0, 3.01, 3.0, 3.0], 2),  # 0.3 % are noise
    ],
)
def test_rounds_without_progress(history: list[float], expected: int) -> None:
    """They count from the last round that the task was more than 1 % slower before."""
    assert stale_rounds(np.array(history)) == expected


def test_the_rule_of_tvm_by_hand(make_table: MakeTable) -> None:
    """The gain is 5 * (0.2 * 2 + 0.8 * 4 / 8), whatever the objective and the group."""
    table = make_table(
        2,
        weights=[5, 1],
        best_secs=[4.0, 1e-6],
        window_secs=[10.0, 1e-6],
        n_rounds=[8, 8],
        similarity_groups=[0, 0],
    )

    terms = TvmEstimator().estimate(table, np.ones(2))

    assert terms.gain[0] == pytest.approx(4.0)
    assert terms.similarity.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": 1.5}, r"alpha must lie in \[0, 1\], got 1.5"),
        ({"alpha": float("nan")}, "alpha .* got nan"),
        ({"beta": 0.5}, "beta must be finite and at least 1, got 0.5"),
        ({"beta": INF}, "beta .* got inf"),
        ({"backward_window": 0}, "backward_window must be at least 1, got 0"),
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    """Each parameter is checked, and the message contains its value."""
    with pytest.raises(SchedulerError, match=message):
        GradientSettings(**changes)
