"""Scores of support vector machines (ai.onnx.ml) by tensor operators."""

from itertools import combinations

import numpy as np
from onnx import TensorProto

from tuner.networks.onnx.graph import Array
from tuner.networks.onnx.node_builder import Replacement, UnknownValueError

# ONNX Runtime keeps the probabilities of a pair within these.
_BOUNDS = (1e-7, 1 - 1e-7)


def regression_scores(b: Replacement) -> str:
    """Return the score of each row, (rows, 1); its sign for a machine of one class."""
    weights = b.numbers("coefficients")
    scores = _sums(b, weights[:, None], b.attribute("n_supports", 0))
    if not b.attribute("one_class", 0):
        return scores
    return b.add("Where", b.add("Greater", scores, b.number(0)), b.number(1), b.number(-1))


def class_scores(b: Replacement, n_classes: int) -> tuple[str, str]:
    """Return the place of the class with the most votes, (rows,), and the scores.

    Each pair of classes has a score and a vote, which a positive score gives to the first. The
    scores are (rows, 2) of two classes, (rows, pairs) of more, and, for two classes with
    ``prob_a``, probabilities, (rows, 2).

    Raises:
        UnknownValueError: If the machine is linear, or computes probabilities of more classes,
            which an iteration approximates.
    """
    counts, pairs = b.attribute("vectors_per_class", []), [*combinations(range(n_classes), 2)]
    slopes = b.numbers("prob_a")
    if not counts or n_classes < 2 or (slopes.size and n_classes > 2):
        raise UnknownValueError
    rows = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])
    coefficients = b.numbers("coefficients").reshape(n_classes - 1, -1)
    weights = np.zeros((len(coefficients[0]), len(pairs)), np.float32)
    votes = np.zeros((len(pairs), n_classes), np.float32)
    for column, (first, second) in enumerate(pairs):
        weights[rows[first], column] = coefficients[second - 1, rows[first]]
        weights[rows[second], column] = coefficients[first, rows[second]]
        votes[column, [first, second]] = 1, -1
    scores = _sums(b, weights, len(weights))
    is_first = b.add("Greater", scores, b.number(0))
    gained = b.add("MatMul", b.add("Cast", is_first, to=TensorProto.FLOAT), b.constant(votes))
    # The votes of a class if all pairs chose their second one.
    total = b.add("Add", gained, b.constant(np.arange(n_classes, dtype=np.float32)))
    place = b.add("ArgMax", total, axis=1, keepdims=0)
    if n_classes > 2:
        return place, scores
    if not slopes.size:
        return place, b.add("Concat", b.add("Neg", scores), scores, axis=1)
    exponent = b.add("Mul", scores, b.constant(slopes))
    exponent = b.add("Add", exponent, b.constant(b.numbers("prob_b")))
    share = b.add("Sigmoid", b.add("Neg", exponent))
    share = _coupled(b, b.add("Clip", share, *(b.number(bound) for bound in _BOUNDS)))
    return place, b.add("Concat", share, b.add("Sub", b.number(1), share), axis=1)


def _coupled(b: Replacement, first: str) -> str:
    """Return the probability of the first of two classes, given that of their pair.

    It is the approximation of ONNX Runtime: coordinate descent on the squared error of both
    (Wu, Lin and Weng, 2004, algorithm 2), which ends after at most two turns for two classes.
    """
    one, limit = b.number(1), b.number(0.005 / 2)
    square, other = b.add("Mul", first, first), b.add("Sub", one, first)
    other_square = b.add("Mul", other, other)
    value = b.add("Add", b.add("Mul", first, b.number(0)), b.number(0.5))
    for _ in range(2):
        gap, rest = b.add("Sub", value, first), b.add("Sub", one, value)
        error = b.add("Mul", b.add("Abs", gap), b.add("Max", value, rest))
        step = b.add("Div", b.add("Mul", b.add("Neg", gap), rest), other_square)
        moved = b.add("Div", b.add("Add", value, step), b.add("Add", step, one))
        step = b.add("Div", b.add("Mul", b.add("Sub", moved, first), moved), square)
        moved = b.add("Div", moved, b.add("Add", step, one))
        value = b.add("Where", b.add("Less", error, limit), value, moved)
    return value


def _sums(b: Replacement, weights: Array, n_vectors: int) -> str:
    """Return the sums of the kernels of all vectors by weight plus the offsets, (rows, columns).

    Without vectors, the features take the place of the kernels.
    """
    width = b.shape(b.input(0))[-1]
    value = b.reshape(b.add("Cast", b.input(0), to=TensorProto.FLOAT), -1, width)
    if n_vectors:
        value = _kernels(b, value, b.numbers("support_vectors").reshape(n_vectors, width))
    product = b.add("MatMul", value, b.constant(weights))
    return b.add("Add", product, b.constant(b.numbers("rho")))


def _kernels(b: Replacement, value: str, vectors: Array) -> str:
    """Return the kernel of each row and vector, (rows, vectors)."""
    kind = b.attribute("kernel_type", b"LINEAR").decode()
    gamma, shift, degree = (b.number(each) for each in b.attribute("kernel_params", [0, 0, 0]))
    if kind == "RBF":
        gap = b.add("Sub", b.unsqueeze(value, 1), b.constant(vectors))
        distance = b.reduce("ReduceSum", b.add("Mul", gap, gap), -1)
        distance = b.reshape(distance, -1, len(vectors))
        return b.add("Exp", b.add("Neg", b.add("Mul", distance, gamma)))
    product = b.add("MatMul", value, b.constant(np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return product
    scaled = b.add("Add", b.add("Mul", product, gamma), shift)
    return b.add("Tanh", scaled) if kind == "SIGMOID" else b.add("Pow", scaled, degree)
