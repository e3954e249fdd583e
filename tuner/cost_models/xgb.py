"""The learned cost model: gradient boosted trees on the stores of a program."""

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from tuner.cost_models import blobs
from tuner.cost_models.base import Features, Floats, Ints, TrainingSet
from tuner.cost_models.features import Stores, stack
from tuner.cost_models.random import chance_scores

_LENGTH = struct.Struct("<I")

# Scale of the softplus: predicted throughputs further below 0 have scores near 0.
_SOFTNESS = 0.05

Objective = Callable[[Floats], tuple[Floats, Floats]]
"""Map from scores to gradients and (positive) second derivatives, all of shape (n_samples,)."""

# A failed trial has label 0; with Ansor's weight, which is the label, it would have no effect. On
# measured trials this minimum also ordered held-out candidates better than 0 and 0.1 did.
_MIN_WEIGHT = 0.3


def throughput(labels: Floats) -> Objective:
    """Return the squared error to the labels, with larger weights for fast programs.

    Ansor (OSDI'20, section 5.2) uses weight = label; here the weight is at least 0.3.
    """
    weights = np.maximum(labels, _MIN_WEIGHT)

    def differentiate(scores: Floats) -> tuple[Floats, Floats]:
        return weights * (scores - labels), weights

    return differentiate


def ranking(labels: Floats, faster: Ints, slower: Ints) -> Objective:
    """Return the pairwise logistic loss, with larger weights for pairs that differ more.

    RankNet (ICML'05) with the difference of the labels as the weight of a pair.

    Args:
        labels: Normalised throughputs, shape (n_samples,).
        faster: Index of the faster sample of each pair, shape (n_pairs,).
        slower: Index of the slower sample of each pair, shape (n_pairs,).
    """
    n_samples = len(labels)
    weights = labels[faster] - labels[slower]

    def total(samples: Ints, amounts: Floats) -> Floats:
        return np.bincount(samples, amounts, n_samples).astype(np.float64, copy=False)

    def differentiate(scores: Floats) -> tuple[Floats, Floats]:
        # The probability that the model orders the pair wrongly, computed without overflow.
        wrong = 0.5 - 0.5 * np.tanh(0.5 * (scores[faster] - scores[slower]))
        pull = weights * wrong
        curve = pull * (1.0 - wrong)
        gradients = total(slower, pull) - total(faster, pull)
        hessians = total(slower, curve) + total(faster, curve)
        return gradients, np.maximum(hessians, 1e-6)

    return differentiate


def choose_pairs(labels: Floats, tasks: Ints, per_sample: int, seed: int) -> tuple[Ints, Ints]:
    """Choose pairs of samples of one task with different labels.

    All pairs of a task with up to ``2 * per_sample + 1`` samples, otherwise ``per_sample`` random
    pairs per sample, so that the time grows linearly with the samples.

    Returns:
        The faster and the slower sample of each pair, both of shape (n_pairs,).
    """
    rng = np.random.default_rng(seed)
    firsts, seconds = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for task in np.unique(tasks):
        members = np.flatnonzero(tasks == task)
        n = len(members)
        if n - 1 <= 2 * per_sample:
            first, second = np.triu_indices(n, 1)
        else:
            first, second = rng.integers(n, size=(2, per_sample * n))
        firsts.append(members[first])
        seconds.append(members[second])
    first, second = np.concatenate(firsts), np.concatenate(seconds)
    ahead = labels[first] > labels[second]
    faster, slower = np.where(ahead, first, second), np.where(ahead, second, first)
    differ = labels[faster] != labels[slower]
    return faster[differ], slower[differ]


@dataclass(frozen=True)
class XGBSettings:
    """Hyperparameters of the trees.

    On the trials that `XGBModel` mentions, more or deeper trees gave no improvement; hiding half
    of the columns from each tree did.

    Args:
        objective: "throughput" predicts the label, "ranking" only the order within a task.
        seed: Seed of the pairs of "ranking" and of the scores of an untrained model.
        n_trees: Number of boosting rounds.
        max_depth: Maximum depth of each tree.
        eta: Learning rate.
        min_samples: Minimum number of samples; with fewer, or with equal labels within every
            task, the model stays untrained.
        pairs_per_sample: Maximum number of pairs per sample for "ranking".
        n_threads: Number of threads for training and prediction.
    """

    objective: Literal["throughput", "ranking"] = "ranking"
    seed: int = 0
    n_trees: int = 60
    max_depth: int = 6
    eta: float = 0.2
    min_samples: int = 16
    pairs_per_sample: int = 32
    n_threads: int = 2

    def __post_init__(self) -> None:
        if self.objective not in ("throughput", "ranking"):
            raise ValueError(f"objective must be throughput or ranking, got {self.objective!r}")


@dataclass(frozen=True)
class _Learned:
    """Trees, their feature width, and mean and deviation within a task of their training sums."""

    booster: Any
    width: int
    mean: float
    deviation: float


class XGBModel:
    """A model that scores a program by the sum of the trees over its stores (Ansor's pack-sum).

    A score is a positive, increasing function of that sum s: for "throughput" the softplus of s,
    nearly s itself where s > 0.1; for "ranking", where only the order matters, exp(z) with s
    standardised to z by the sums of the training samples: by their mean, and by their deviation
    within a task. A ranking loss leaves the distance between tasks open, and standardised by the
    deviation of all sums together, the candidates of one task would hardly differ.

    On 766 CPU trials of four tasks, a third of them held out, "ranking" ordered the trials of a
    task better (Spearman 0.65 against 0.61); the best of its first eight was equally fast, within
    the noise. It is also more robust to a single lucky trial, which reduces every other label of
    its task.
    """

    def __init__(self, settings: XGBSettings) -> None:
        self._settings = settings
        self._learned: _Learned | None = None

    @property
    def kind(self) -> str:
        """Name of this kind of model."""
        return f"xgb-{self._settings.objective}"

    @property
    def is_random(self) -> bool:
        """True while the model is untrained."""
        return self._learned is None

    def train(self, samples: TrainingSet) -> None:
        """Grow new trees, or none if there are too few samples."""
        stores = stack(samples.features)
        labels = samples.throughputs()
        if len(labels) < self._settings.min_samples or not _differ(labels, samples.tasks):
            self._learned = None
            return
        booster = _boost(stores, _objective(labels, samples.tasks, self._settings), self._settings)
        sums = _sum_stores(booster, stores)
        self._learned = _Learned(
            booster,
            stores.rows.shape[1],
            float(sums.mean()),
            deviation_within(sums, samples.tasks),
        )

    def predict(self, features: Sequence[Features]) -> Floats:
        """Score candidates by the trees; at random while the model is untrained."""
        stores = stack(features)
        if self._learned is None:
            return chance_scores(stores, self._settings.seed)
        if not len(stores.counts):
            return np.empty(0)
        if stores.rows.shape[1] != self._learned.width:
            raise ValueError(
                f"the model learned features of width {self._learned.width}, "
                f"got width {stores.rows.shape[1]}"
            )
        sums = _sum_stores(self._learned.booster, stores)
        if self._settings.objective == "ranking":
            spread = self._learned.deviation or 1.0
            return np.exp(np.clip((sums - self._learned.mean) / spread, -50.0, 50.0))
        return _SOFTNESS * np.logaddexp(0.0, sums / _SOFTNESS)

    def save(self) -> bytes:
        """Return a blob with the settings and the trees."""
        meta: dict[str, Any] = {"settings": asdict(self._settings)}
        trees = b""
        if self._learned is not None:
            meta["width"] = self._learned.width
            meta["mean"] = self._learned.mean
            meta["deviation"] = self._learned.deviation
            trees = bytes(self._learned.booster.save_raw("ubj"))
        head = json.dumps(meta).encode()
        return blobs.seal(self.kind, _LENGTH.pack(len(head)) + head + trees)

    @classmethod
    def load(cls, blob: bytes) -> Self:
        """Restore a model from its blob."""
        kind, body = blobs.unseal(blob)
        try:
            (length,) = _LENGTH.unpack_from(body)
            trees = body[_LENGTH.size + length :]
            meta = json.loads(body[_LENGTH.size : _LENGTH.size + length])
            settings = XGBSettings(**meta["settings"])
            model = cls(settings)
            if trees:
                import xgboost

                booster = xgboost.Booster(
                    {"nthread": settings.n_threads}, model_file=bytearray(trees)
                )
                model._learned = _Learned(booster, meta["width"], meta["mean"], meta["deviation"])
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"expected a saved xgb model, got {kind!r}: {error}") from error
        if model.kind != kind:
            raise ValueError(f"saved as {kind!r}, but the settings are those of {model.kind!r}")
        return model


def deviation_within(sums: Floats, tasks: Ints) -> float:
    """Return the standard deviation around the means of the tasks, pooled over all tasks."""
    _, members, counts = np.unique(tasks, return_inverse=True, return_counts=True)
    means = np.bincount(members, sums) / counts
    n_free = max(len(sums) - len(counts), 1)
    return float(np.sqrt(((sums - means[members]) ** 2).sum() / n_free))


def _differ(labels: Floats, tasks: Ints) -> bool:
    """Return whether some task has two samples with different labels."""
    distinct = np.unique(np.column_stack([tasks, labels]), axis=0)
    return len(distinct) > len(np.unique(tasks))


def _objective(labels: Floats, tasks: Ints, settings: XGBSettings) -> Objective:
    if settings.objective == "throughput":
        return throughput(labels)
    pairs = choose_pairs(labels, tasks, settings.pairs_per_sample, settings.seed)
    return ranking(labels, *pairs)


def _boost(stores: Stores, objective: Objective, settings: XGBSettings) -> Any:
    """Grow trees on rows so that their sums over each program minimise the objective."""
    # Not at the top: the models of the first rounds have no trees, and it takes half a second.
    import xgboost

    def differentiate(predictions: npt.NDArray[np.float32], _: Any) -> tuple[Floats, Floats]:
        sums = np.add.reduceat(predictions.astype(np.float64), stores.starts)
        gradients, hessians = objective(sums)
        # All n rows of a program move together, so its sum moves n times as far; the n-fold
        # second derivative keeps the Newton step from overshooting.
        return (
            np.repeat(gradients, stores.counts),
            np.repeat(hessians * stores.counts, stores.counts),
        )

    params = {
        "tree_method": "hist",
        "max_depth": settings.max_depth,
        "eta": settings.eta,
        "min_child_weight": 0,
        "colsample_bytree": 0.5,
        "gamma": 0.001,
        "base_score": 0.0,
        "nthread": settings.n_threads,
        "seed": settings.seed,
        "disable_default_eval_metric": True,
    }
    data = xgboost.QuantileDMatrix(_append_counts(stores), nthread=settings.n_threads)
    return xgboost.train(params, data, settings.n_trees, obj=differentiate)


def _sum_stores(booster: Any, stores: Stores) -> Floats:
    """Return the sum of each program's rows, shape (n_candidates,)."""
    rows = booster.inplace_predict(_append_counts(stores), predict_type="margin")
    return np.add.reduceat(rows.astype(np.float64), stores.starts)


def _append_counts(stores: Stores) -> npt.NDArray[np.float32]:
    """Append the number of stores of the program to each of its rows.

    The trees see one row at a time, and every row adds to the sum. Without this column, the scores
    of long, slow programs and of short, failed ones were wrong.
    """
    counts = np.repeat(stores.counts, stores.counts).astype(np.float32)
    return np.column_stack([stores.rows, counts])
