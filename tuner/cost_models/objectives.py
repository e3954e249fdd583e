"""Loss functions of learned cost models, as gradients in the scores of whole programs."""

from collections.abc import Callable

import numpy as np

from tuner.cost_models.base import Floats, Ints

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
