"""Forecasts: their inputs, invariances, and agreement with outcomes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.arrays import Ints
from scheduler.errors import SchedulerError
from scheduler.forecasts.curves import Curves
from scheduler.forecasts.forecast import Forecast, ForecastSettings, forecast
from tests.scheduler.make import REPEATABLE, curves, permuted_curves, power_laws

INF = float("inf")
SETTINGS = ForecastSettings()


def fit(*histories: Sequence[float], groups: Ints | None = None, **changes: float) -> Forecast:
    """Forecast tasks whose rounds took 16 trials each."""
    points = Curves.of(histories, [[16] * len(history) for history in histories])
    return forecast(points, ForecastSettings(**changes), groups)


def spread_of_exponent(fitted: Forecast) -> float:
    """Return the standard deviation of the first task's exponent."""
    return float(np.sqrt(fitted.shape[0]) / fitted.exposure[0])


def test_a_task_that_improved_lately_promises_more_than_one_that_stalled() -> None:
    """Both fell from 8 to 2 seconds in equal trials, one of them immediately."""
    expected, _ = fit(
        [8.0, 6.0, 4.0, 3.0, 2.0], [8.0, 2.0, 2.0, 2.0, 2.0], memory=0.7, strength=0.5
    ).savings(16)

    assert expected[0] > 1.3 * expected[1]


def test_nothing_is_forgotten_with_a_memory_of_one() -> None:
    """The same fall over the same trials counts equally, however early."""
    exponents = fit([8.0, 6.0, 2.0], [8.0, 2.0, 2.0], memory=1.0)

    assert exponents.shape[0] == pytest.approx(exponents.shape[1])
    assert exponents.exposure[0] == pytest.approx(exponents.exposure[1])


def test_uncertainty_shrinks_with_evidence() -> None:
    """More rounds on the same power law narrow its exponent and the saving of the next round."""
    rounds = 8.0 + 16.0 * np.arange(1, 41)
    few, many = ((rounds[:n] / rounds[0]) ** -0.4 for n in (3, 40))

    assert spread_of_exponent(fit(many, memory=1.0)) < spread_of_exponent(fit(few, memory=1.0))
    relative = [fit(curve).savings(16)[1][0] / curve[-1] for curve in (few, many)]
    assert relative[1] < 0.5 * relative[0]


def test_the_prior_is_pulled_by_the_group() -> None:
    """Two tasks measured once differ by the curves of their groups."""
    fast, slow = [8.0, 4.0, 2.0, 1.0], [8.0, 8.0, 8.0, 8.0]

    grouped, _ = fit(fast, [5.0], slow, [5.0], groups=np.array([2, 2, 0, 0])).savings(16)
    alone, _ = fit(fast, [5.0], slow, [5.0]).savings(16)

    assert grouped[1] > alone[1] > grouped[3]
    assert alone[1] == alone[3]


def test_strength_is_trust_in_the_group() -> None:
    """A strong prior outweighs the task's own curve."""
    stubborn, _ = fit([8.0, 8.0], [8.0, 1.0], strength=1e6).savings(16)
    open_minded, _ = fit([8.0, 8.0], [8.0, 1.0], strength=1e-3).savings(16)

    assert stubborn[0] / 8.0 == pytest.approx(stubborn[1], rel=1e-3)
    assert open_minded[0] / 8.0 < 0.1 * open_minded[1]


@REPEATABLE
@given(curves(), st.integers(-30, 30), st.integers(1, 1000))
def test_the_unit_of_latency_does_not_matter(points: Curves, power: int, n_trials: int) -> None:
    """Savings scale with it exactly (by a power of two), exponents stay."""
    scaled = Curves(points.best_secs * 2.0**power, points.n_trials, points.offsets)
    before, after = forecast(points, SETTINGS), forecast(scaled, SETTINGS)

    assert (before.shape == after.shape).all()
    assert (before.exposure == after.exposure).all()
    for old, new in zip(before.savings(n_trials), after.savings(n_trials), strict=True):
        assert (old * 2.0**power == new).all()


@REPEATABLE
@given(curves(), st.integers(0, 2**32 - 1))
def test_the_order_of_tasks_does_not_matter(points: Curves, seed: int) -> None:
    """Shuffled curves have the same forecasts, shuffled."""
    draws = np.random.default_rng(seed)
    order = draws.permutation(points.n_tasks)
    groups = draws.integers(0, points.n_tasks, points.n_tasks)

    before = forecast(points, SETTINGS, groups).savings(64)
    after = forecast(permuted_curves(points, order), SETTINGS, groups[order]).savings(64)

    for old, new in zip(before, after, strict=True):
        assert new == pytest.approx(old[order], rel=1e-9)


@REPEATABLE
@given(
    points=curves(),
    grouped=st.booleans(),
    n_trials=st.integers(0, 10**9),
    memory=st.sampled_from([1e-6, 0.7, 1.0]),
    lag_trials=st.sampled_from([0.0, 8.0]),
)
def test_no_curve_makes_nan(
    points: Curves, grouped: bool, n_trials: int, memory: float, lag_trials: float
) -> None:
    """Empty, failing, zero and one-sample curves give finite savings within the latency."""
    groups = np.zeros(points.n_tasks, np.int64) if grouped else None
    settings = ForecastSettings(memory=memory, lag_trials=lag_trials)

    expected, spread = forecast(points, settings, groups).savings(n_trials)

    latest = points.last(points.best_secs, INF)
    known = np.where(np.isfinite(latest), latest, 0.0)
    assert np.isfinite(spread).all()
    assert (spread >= 0.0).all()
    assert (expected >= 0.0).all()
    assert (expected <= known).all()


@REPEATABLE
@given(curves(), st.integers(0, 1000), st.integers(1, 1000))
def test_savings_grow_with_the_trials(points: Curves, n_trials: int, more: int) -> None:
    """More trials never save less, and zero trials save exactly nothing."""
    fitted = forecast(points, SETTINGS)
    none, certain = fitted.savings(0)

    assert (fitted.savings(n_trials + more)[0] >= fitted.savings(n_trials)[0]).all()
    assert (none == 0.0).all()
    assert (certain == 0.0).all()


def test_savings_may_differ_in_trials() -> None:
    """One count per task works as well as one for all."""
    fitted = fit([4.0, 2.0], [4.0, 2.0])

    expected, _ = fitted.savings(np.array([16, 0]))

    assert expected[0] == fitted.savings(16)[0][0] > expected[1] == 0.0


@pytest.mark.parametrize(("n_seen", "n_more"), [(3, 20), (10, 5), (10, 20), (30, 20)])
def test_forecasts_come_true_on_average(n_seen: int, n_more: int) -> None:
    """Over 400 lucky power laws the mean saving is right within a quarter, and covered.

    The spread errs on the wide side: nearly all tasks end within two of it.
    """
    tasks = power_laws(400, n_seen + n_more, seed=1).tasks
    points = Curves.of(
        [task.best_secs[:n_seen] for task in tasks], [task.n_trials[:n_seen] for task in tasks]
    )
    now = np.array([task.best_secs[n_seen - 1] for task in tasks])
    saved = now - np.array([task.best_secs[-1] for task in tasks])

    expected, spread = forecast(points, SETTINGS).savings(16 * n_more)

    assert 0.8 < (expected / now).mean() / (saved / now).mean() < 1.25
    assert (np.abs(saved - expected) <= 2.0 * spread).mean() > 0.95
    assert np.corrcoef(expected / now, saved / now)[0, 1] > 0.2


def test_a_rising_curve_counts_as_no_progress() -> None:
    """A worse repeated latency has no effect."""
    fitted = fit([2.0, 3.0, INF, 3.0], [2.0, 2.0, 2.0, 2.0])

    assert fitted.shape[0] == fitted.shape[1]
    assert np.isfinite(fitted.savings(16)[0]).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory": 0.0}, r"memory must lie in \(0, 1\], got 0.0"),
        ({"memory": 1.5}, "memory .* got 1.5"),
        ({"memory": float("nan")}, "memory .* got nan"),
        ({"strength": 0.0}, "strength must be finite and above 0, got 0.0"),
        ({"strength": INF}, "strength .* got inf"),
        ({"lag_trials": -1.0}, "lag_trials must be finite and at least 0, got -1.0"),
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    """Each setting is checked, and the message contains its value."""
    with pytest.raises(SchedulerError, match=message):
        ForecastSettings(**changes)
