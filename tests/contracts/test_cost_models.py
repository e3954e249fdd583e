"""The contract of every cost model."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from tuner import cost_models
from tuner.cost_models import CostModel, TrainingSet

WIDTH = 164

pytestmark = pytest.mark.parametrize("kind", sorted(cost_models.KINDS))


def make_candidates(n: int, seed: int) -> list[npt.NDArray[np.float32]]:
    """Sparse features of programs with one to six stores."""
    rng = np.random.default_rng(seed)
    arrays = [rng.random((rng.integers(1, 7), WIDTH)) * 20 for _ in range(n)]
    return [np.where(array < 12, 0, array).astype(np.float32) for array in arrays]


def make_samples(n: int = 96, seed: int = 1) -> TrainingSet:
    """Three tasks whose latency follows one column; every eighth trial failed."""
    features = make_candidates(n, seed)
    latencies = np.array([1e-3 * (1 + array[:, 3].sum()) for array in features])
    latencies[::8] = np.inf
    return TrainingSet(features, latencies, np.arange(n) % 3)


def make_trained(kind: str, seed: int = 7) -> CostModel:
    """Train a new model on the samples above."""
    model = cost_models.create(kind, seed)
    model.train(make_samples())
    return model


@cache
def make_both(kind: str) -> Sequence[CostModel]:
    """One untrained and one trained model, which tests only read."""
    return cost_models.create(kind, 7), make_trained(kind)


@pytest.mark.parametrize("n_candidates", [0, 1, 64])
def test_predict_scores_every_candidate(kind: str, n_candidates: int) -> None:
    """One finite score of at least 0 per candidate."""
    for model in make_both(kind):
        scores = model.predict(make_candidates(n_candidates, seed=2))

        assert scores.shape == (n_candidates,)
        assert scores.dtype == np.float64
        assert np.isfinite(scores).all()
        assert (scores >= 0).all()


def test_scores_are_spread(kind: str) -> None:
    """Different candidates get different scores, trained or not."""
    for model in make_both(kind):
        scores = model.predict(make_candidates(64, seed=2))

        assert len(np.unique(scores)) > 32


def test_save_and_load_keep_every_score(kind: str) -> None:
    """A restored model gives the same bits."""
    candidates = make_candidates(64, seed=2)
    for model in make_both(kind):
        blob = model.save()
        restored = cost_models.load(blob)

        # Blobs are compared by their hashes.
        assert restored.save() == blob
        assert restored.kind == kind
        assert restored.predict(candidates).tobytes() == model.predict(candidates).tobytes()


def test_seed_matters_before_training(kind: str) -> None:
    """Two seeds explore differently."""
    candidates = make_candidates(8, seed=2)

    first = cost_models.create(kind, 1).predict(candidates)
    second = cost_models.create(kind, 2).predict(candidates)

    assert (first != second).all()


def test_score_does_not_depend_on_the_other_candidates(kind: str) -> None:
    """One call for all and one call for each agree."""
    candidates = make_candidates(16, seed=2)
    for model in make_both(kind):
        together = model.predict(candidates)
        alone = np.concatenate([model.predict([candidate]) for candidate in candidates])

        np.testing.assert_array_equal(together, alone)


def test_the_last_samples_alone_count(kind: str) -> None:
    """Training forgets what was learned before; without samples, nothing is left."""
    candidates = make_candidates(16, seed=2)
    model, (untrained, trained) = cost_models.create(kind, 7), make_both(kind)
    model.train(make_samples(n=48, seed=5))

    for samples, expected in (
        (make_samples(), trained),
        (TrainingSet([], np.empty(0), np.empty(0, np.int64)), untrained),
    ):
        model.train(samples)
        np.testing.assert_array_equal(model.predict(candidates), expected.predict(candidates))


def test_features_that_are_not_finite_get_finite_scores(kind: str) -> None:
    """A feature extractor that overflows does not stop a search."""
    candidate = np.zeros((2, WIDTH), np.float32)
    candidate[0, :3] = [np.nan, np.inf, -np.inf]
    for model in make_both(kind):
        assert np.isfinite(model.predict([candidate])).all()


@pytest.mark.parametrize("shape", [(0, WIDTH), (WIDTH,), (1, 2, WIDTH), (3, WIDTH - 1)])
def test_misshapen_features_are_refused(kind: str, shape: tuple[int, ...]) -> None:
    """An array without stores, or of another width than its neighbour, names itself."""
    candidates = [*make_candidates(2, seed=2), np.zeros(shape, np.float32)]
    for model in make_both(kind):
        with pytest.raises(ValueError, match="candidate 2 has features of shape"):
            model.predict(candidates)


def test_damaged_blob_is_refused(kind: str) -> None:
    """Cut, altered, or empty: never a model that scores wrongly."""
    blob = make_both(kind)[1].save()
    altered = blob[:-1] + bytes([blob[-1] ^ 1])

    for bad in (b"", blob[:5], blob[:-1], altered, blob + b"x", b"garbage " * 20):
        with pytest.raises(ValueError, match="saved cost model"):
            cost_models.load(bad)


def test_models_know_whether_they_have_learned(kind: str) -> None:
    """A search does not rank by scores that are random."""
    untrained, trained = make_both(kind)

    assert untrained.is_random
    assert trained.is_random is (kind == "random")
