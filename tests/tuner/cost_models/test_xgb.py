"""The learned model orders candidates within a task, with failures last."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from tuner.cost_models import CostModel, TrainingSet, create, xgb
from tuner.cost_models.base import Floats
from tuner.cost_models.random import RandomModel
from tuner.cost_models.xgb import XGBModel, XGBSettings, deviation_within

WIDTH = 164
KINDS = ["xgb-ranking", "xgb-throughput"]


def make_samples(n: int, seed: int, *, scales: tuple[float, ...] = (1e-5,)) -> TrainingSet:
    """Return trials of programs with one to five stores, whose costs add up to the latency."""
    rng = np.random.default_rng(seed)
    features, costs = [], []
    for _ in range(n):
        array = 12 * rng.random((rng.integers(1, 6), WIDTH))
        array[:, 50:] *= rng.random((len(array), WIDTH - 50)) < 0.4
        features.append(array.astype(np.float32))
        # Parallelism helps up to a point, traffic hurts, vector loops help.
        effects = 0.25 * np.abs(array[:, 5] - 6) + 0.1 * array[:, 20] - 0.05 * array[:, 40]
        costs.append(np.exp(effects).sum())
    tasks = np.arange(n) % len(scales)
    noise = np.exp(0.05 * rng.standard_normal(n))
    return TrainingSet(features, np.array(scales)[tasks] * np.array(costs) * noise, tasks)


def train(kind: str, samples: TrainingSet) -> CostModel:
    """Create and train a model."""
    model = create(kind, 0)
    model.train(samples)
    return model


def correlate(scores: npt.NDArray[np.float64], latencies: npt.NDArray[np.float64]) -> float:
    """Return the Spearman correlation of scores and speed."""
    # Every process of pytest would import it when it collects the tests, for a second.
    from scipy.stats import spearmanr

    return float(spearmanr(scores, -latencies).statistic)


@pytest.mark.in_ci
@pytest.mark.slow("5 s of training each")
@pytest.mark.parametrize("kind", KINDS)
def test_orders_held_out_candidates(kind: str) -> None:
    """The correlation exceeds 0.7 on trials that were held out."""
    model, held_out = train(kind, make_samples(600, seed=0)), make_samples(200, seed=1)

    assert correlate(model.predict(held_out.features), held_out.latencies) > 0.7


@pytest.mark.parametrize("kind", KINDS)
def test_many_stores_do_not_diverge(kind: str) -> None:
    """Programs of forty stores, whose rows all move together, are learned equally well."""
    samples = make_samples(200, seed=0)
    features = [np.repeat(array[:1], 40, axis=0) for array in samples.features]
    latencies = np.array([1e-5 * (1 + array[0, 5]) for array in features])

    model = train(kind, TrainingSet(features, latencies, samples.tasks))

    assert correlate(model.predict(features), latencies) > 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_failed_trials_rank_last(kind: str) -> None:
    """Candidates with the feature of failures score lower in 19 of 20 pairs."""
    samples, held_out = make_samples(200, seed=0), make_samples(100, seed=1)
    for dataset in (samples, held_out):
        for i, array in enumerate(dataset.features):
            array[:, 100:110] = 10 * (i % 4 == 0)
    latencies = np.where(np.arange(200) % 4 == 0, np.inf, samples.latencies)
    model = train(kind, TrainingSet(samples.features, latencies, samples.tasks))

    scores = model.predict(held_out.features)

    fails = np.arange(100) % 4 == 0
    assert (scores[fails, None] < scores[None, ~fails]).mean() > 0.95


@pytest.mark.parametrize("kind", KINDS)
def test_scales_of_tasks_do_not_mix(kind: str) -> None:
    """The best of a task ten thousand times slower scores like the best of the fast one."""
    scales = (1e-6, 1e-2)
    samples, held_out = (make_samples(n, n, scales=scales) for n in (400, 200))
    for dataset in (samples, held_out):
        for array, task in zip(dataset.features, dataset.tasks, strict=True):
            array[:, 150] = task  # the model can tell the tasks apart, and must not use it

    scores = train(kind, samples).predict(held_out.features)

    fast, slow = (np.flatnonzero(held_out.tasks == task) for task in (0, 1))
    for members in (fast, slow):
        assert correlate(scores[members], held_out.latencies[members]) > 0.6
    best_of_slow = slow[np.argmin(held_out.latencies[slow])]
    assert scores[best_of_slow] > np.quantile(scores[fast], 0.8)


def test_scores_within_a_task_keep_their_spread_beside_other_tasks() -> None:
    """Sums of tasks that lie far apart do not shrink the deviation of the candidates of one."""
    sums, tasks = np.random.default_rng(0).standard_normal(300), np.arange(300) % 3
    offsets = np.array([0.0, 50.0, -400.0])[tasks]

    assert deviation_within(sums, tasks) == pytest.approx(1.0, abs=0.1)
    assert deviation_within(sums + offsets, tasks) == pytest.approx(deviation_within(sums, tasks))
    assert deviation_within(sums[:3], tasks[:3]) == 0.0


def test_ranking_scores_of_a_task_deviate_by_one() -> None:
    """The logarithms of the scores are standardised within a task, not over all tasks."""
    samples = make_samples(200, seed=0, scales=(1e-6, 1e-2))
    for array, task in zip(samples.features, samples.tasks, strict=True):
        array[:, 150] = task

    logs = np.log(train("xgb-ranking", samples).predict(samples.features))

    assert deviation_within(logs, samples.tasks) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ["few", "failed", "alone"])
def test_untrained_model_scores_by_chance(kind: str, case: str) -> None:
    """With too few samples, none that ran, or no pair to compare, scores are random."""
    samples = make_samples(15 if case == "few" else 32, seed=0)
    latencies = np.full(32, np.inf) if case == "failed" else samples.latencies
    tasks = np.arange(32) if case == "alone" else samples.tasks
    model = train(kind, TrainingSet(samples.features, latencies, tasks))

    scores = model.predict(samples.features)

    np.testing.assert_array_equal(scores, RandomModel(0).predict(samples.features))
    assert (scores > 0).all()
    assert (scores < 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_another_width_is_refused(kind: str) -> None:
    """Features of another extractor are refused, also after saving and loading."""
    model = train(kind, make_samples(32, seed=0))

    for loaded in (model, XGBModel.load(model.save())):
        with pytest.raises(ValueError, match="width 164, got width 163"):
            loaded.predict([np.zeros((1, 163), np.float32)])


def test_unknown_objective_is_refused() -> None:
    """The message names both."""
    with pytest.raises(ValueError, match="must be throughput or ranking, got 'speed'"):
        XGBSettings(objective="speed")  # type: ignore[arg-type]


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
    check_gradient(xgb.throughput(LABELS), squared_error)


def test_ranking_gradient() -> None:
    """The gradient matches differences of the pairwise logistic loss."""
    pairs = xgb.choose_pairs(LABELS, TASKS, per_sample=8, seed=0)
    check_gradient(xgb.ranking(LABELS, *pairs), logistic)


def check_gradient(objective: xgb.Objective, loss: Callable[[Floats], float]) -> None:
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
    pairs = xgb.choose_pairs(LABELS, TASKS, per_sample=8, seed=0)

    gradients, hessians = xgb.ranking(LABELS, *pairs)(-1e6 * LABELS)

    assert np.isfinite(gradients).all()
    assert (hessians > 0).all()


@pytest.mark.parametrize("n_samples", [0, 1, 2, 17, 18, 500])
def test_pairs_stay_within_task_and_bound(n_samples: int) -> None:
    """The faster sample is first, of the same task; pairs grow linearly with the samples."""
    rng = np.random.default_rng(3)
    labels, tasks = rng.random(n_samples), np.arange(n_samples) % 2

    faster, slower = xgb.choose_pairs(labels, tasks, per_sample=4, seed=0)

    assert len(faster) <= 4 * n_samples
    assert (labels[faster] > labels[slower]).all()
    assert (tasks[faster] == tasks[slower]).all()


def test_small_tasks_give_all_their_pairs() -> None:
    """All pairs are used if they are few enough."""
    faster, _ = xgb.choose_pairs(np.arange(9.0), np.zeros(9, np.int64), 4, seed=0)

    assert len(faster) == 9 * 8 // 2
