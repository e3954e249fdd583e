"""Savings of further trials that are spent where they save most."""

from collections.abc import Callable

import numpy as np
import pytest

from scheduler.errors import SchedulerError
from scheduler.forecasts.curves import Curves
from scheduler.forecasts.forecast import ForecastSettings, forecast
from scheduler.forecasts.outlook import look_ahead, trials_until
from scheduler.state import TaskTable

INF = float("inf")
MakeTable = Callable[..., TaskTable]


@pytest.fixture
def table(make_table: MakeTable) -> TaskTable:
    """A table of a falling task, a stalled one, one that never ran, and a dead one."""
    curves = Curves.of(
        [[8.0, 4.0, 2.0], [2.0, 2.0, 2.0], [INF] * 3, [8.0, 4.0, 2.0]], [[16] * 3] * 4
    )
    return make_table(
        4,
        best_secs=[2.0, 2.0, INF, 2.0],
        n_rounds=[3] * 4,
        alive=[True, True, True, False],
        curves=curves,
    )


def test_no_task_is_forecast_to_fall_below_its_roof() -> None:
    """However many trials follow, the saving ends there."""
    curves = Curves.of([[8.0, 4.0, 2.0]] * 2, [[16] * 3] * 2)
    table = TaskTable(
        weights=np.array([1, 1]),
        flop=np.ones(2),
        best_secs=np.full(2, 2.0),
        window_secs=np.full(2, 8.0),
        n_rounds=np.array([3, 3]),
        n_trials=np.array([48, 48]),
        n_failed_rounds=np.zeros(2, np.int64),
        rounds_since_pick=np.zeros(2, np.int64),
        alive=np.ones(2, np.bool_),
        curves=curves,
        roof_secs=np.array([1.9, 2.0]),
    )

    assert look_ahead(table, np.ones(2), 10**6).saving == pytest.approx(0.1)


def test_no_trials_save_nothing(table: TaskTable) -> None:
    """The saving and its spread are 0."""
    outlook = look_ahead(table, np.ones(4), 0)

    assert (outlook.n_trials, outlook.saving, outlook.spread) == (0, 0.0, 0.0)


@pytest.mark.parametrize("n_trials", [1, 16, 5000])
def test_distributing_beats_any_single_task(table: TaskTable, n_trials: int) -> None:
    """All trials on one task never save more."""
    assert table.curves is not None
    alone, _ = forecast(table.curves, ForecastSettings()).savings(n_trials)

    outlook = look_ahead(table, np.ones(4), n_trials)

    assert outlook.n_trials == n_trials
    assert 0.99 * alone[:2].max() <= outlook.saving < 4.0
    assert outlook.spread > 0.0


def test_savings_grow_with_the_trials(table: TaskTable) -> None:
    """A longer outlook saves more, and a doubled weight doubles the saving."""
    savings = [look_ahead(table, np.ones(4), n).saving for n in (1, 10, 100, 1000, 10_000)]

    assert savings == sorted(savings)
    assert look_ahead(table, np.full(4, 2.0), 100).saving == pytest.approx(2.0 * savings[2])


def test_a_met_objective_saves_nothing(table: TaskTable) -> None:
    """Without weight there is nothing to save."""
    assert look_ahead(table, np.zeros(4), 100).saving == 0.0


def test_misuse_is_refused(make_table: MakeTable, table: TaskTable) -> None:
    """Curves are required, and trials cannot be negative."""
    with pytest.raises(SchedulerError, match="an outlook needs a table with curves"):
        look_ahead(make_table(), np.ones(3), 10)
    with pytest.raises(SchedulerError, match="n_trials must be at least 0, got -1"):
        look_ahead(table, np.ones(4), -1)


def test_a_job_stops_where_a_step_saves_too_little(table: TaskTable) -> None:
    """The step after that many trials saves less than the threshold, the one before does not."""
    saving = look_ahead(table, np.ones(4), 16).saving
    least = saving / 3

    n_trials = trials_until(table, np.ones(4), 16, least)

    assert n_trials is not None
    assert n_trials % 16 == 0
    totals = [
        look_ahead(table, np.ones(4), n).saving for n in (n_trials - 16, n_trials, n_trials + 16)
    ]
    assert totals[2] - totals[1] < 1.2 * least
    assert totals[1] - totals[0] > 0.8 * least
    assert trials_until(table, np.ones(4), 16, 2 * saving) == 0
    assert trials_until(table, np.ones(4), 16, 0.0) is None
    with pytest.raises(SchedulerError, match="n_trials must be at least 1"):
        trials_until(table, np.ones(4), 0, 1.0)
