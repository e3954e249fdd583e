"""Replacement of ensembles of decision trees: all trees descend a level at a time.

A level reads the feature and the threshold of the current node of each tree from tables, and
chooses the next node. Leaves lead to themselves, so that trees of any depth end together.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from tuner.networks.graph import Array
from tuner.networks.node_builder import Replacement, UnknownValueError

# Operator by which a row goes to the first child.
_COMPARISONS = {
    "BRANCH_EQ": "Equal",
    "BRANCH_GT": "Greater",
    "BRANCH_GTE": "GreaterOrEqual",
    "BRANCH_LEQ": "LessOrEqual",
    "BRANCH_LT": "Less",
}
_MAX_DEPTH = 64


@dataclass(frozen=True)
class _Trees:
    """Tables of all nodes, each of shape (nodes,).

    Attributes:
        roots: Number of the first node of each tree.
        depth: Largest number of decisions before a leaf.
        index: Number of a node by tree and its number there.
        comparison: Operator of every decision.
    """

    features: Array
    thresholds: Array
    first: Array
    second: Array
    roots: Array
    depth: int
    index: dict[tuple[int, int], int]
    comparison: str


def regressor_scores(b: Replacement) -> str:
    """Return the sums of the targets of a TreeEnsembleRegressor, (rows, targets)."""
    return _scores(b, "target", int(b.attribute("n_targets", 1)), lambda target: target)


def classifier_scores(b: Replacement, n_scores: int) -> str:
    """Return the sums of the classes of a TreeEnsembleClassifier, (rows, scores).

    With one score, all weights are of one class.
    """
    return _scores(b, "class", n_scores, lambda each: each if n_scores > 1 else 0)


def _scores(b: Replacement, kind: str, n_scores: int, column_of: Callable[[int], int]) -> str:
    trees = _read(b)
    places = b.attribute(f"{kind}_treeids"), b.attribute(f"{kind}_nodeids")
    b.check_table(len(trees.features), n_scores)
    values = np.zeros((len(trees.features), n_scores), np.float32)
    for tree, node, column, weight in zip(
        *places, b.attribute(f"{kind}_ids"), b.attribute(f"{kind}_weights"), strict=True
    ):
        values[trees.index[tree, node], column_of(column)] += weight
    weights = b.add("Gather", b.constant(values), _leaves(b, trees), axis=0)
    how = b.attribute("aggregate_function", b"SUM").decode()
    if how not in ("SUM", "AVERAGE"):
        raise UnknownValueError
    total = b.add("ReduceSum", weights, b.constant(np.array([1])), keepdims=0)
    if how == "AVERAGE":
        total = b.add("Div", total, b.constant(np.array(len(trees.roots), np.float32)))
    base = b.attribute("base_values", [])
    if base:
        if len(base) != n_scores:
            raise UnknownValueError
        total = b.add("Add", total, b.constant(np.array(base, np.float32)))
    return total


def _leaves(b: Replacement, trees: _Trees) -> str:
    """Append the descent; return the leaf of each row in each tree, (rows, trees)."""
    n_rows, width = b.shape(b.input(0))
    if trees.features.max() >= width:
        raise UnknownValueError
    data, limits = b.input(0), trees.thresholds
    if b.dtype(data) == np.float64:
        limits = limits.astype(np.float64)
    else:
        data = b.add("Cast", data, to=TensorProto.FLOAT)
    features, thresholds, first, second = (
        b.constant(each) for each in (trees.features, limits, trees.first, trees.second)
    )
    current = b.constant(np.tile(trees.roots, (n_rows, 1)))
    for _ in range(trees.depth):
        values = b.add("GatherElements", data, b.add("Gather", features, current), axis=1)
        is_first = b.add(trees.comparison, values, b.add("Gather", thresholds, current))
        current = b.add(
            "Where", is_first, b.add("Gather", first, current), b.add("Gather", second, current)
        )
    return current


def _read(b: Replacement) -> _Trees:
    """Return the tables of the attributes.

    Raises:
        UnknownValueError: If decisions are of several kinds, or missing values have a side.
    """
    if b.opset < 13 or len(b.shape(b.input(0))) != 2:
        raise UnknownValueError
    names = ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids")
    columns = [b.attribute(f"nodes_{name}") for name in names]
    if any(column is None for column in columns):
        raise UnknownValueError
    tree_ids, node_ids, modes, features, thresholds, firsts, seconds = columns
    kinds = {mode.decode() for mode in modes} - {"LEAF"}
    if len(kinds) > 1 or not kinds <= set(_COMPARISONS):
        raise UnknownValueError
    if any(b.attribute("nodes_missing_value_tracks_true", [])):
        raise UnknownValueError
    index = {key: i for i, key in enumerate(zip(tree_ids, node_ids, strict=True))}
    n_nodes = len(index)
    first, second = np.arange(n_nodes), np.arange(n_nodes)
    for i, mode in enumerate(modes):
        if mode != b"LEAF":
            first[i], second[i] = index[tree_ids[i], firsts[i]], index[tree_ids[i], seconds[i]]
    children = {*first[first != np.arange(n_nodes)], *second[second != np.arange(n_nodes)]}
    roots = np.array([i for i in range(n_nodes) if i not in children])
    depth = _depth(first, second, roots)
    comparison = _COMPARISONS[kinds.pop()] if kinds else "LessOrEqual"
    floats = np.array(thresholds, np.float32)
    return _Trees(np.array(features), floats, first, second, roots, depth, index, comparison)


def _depth(first: Array, second: Array, roots: Array) -> int:
    """Return the number of levels after which every tree is at a leaf."""
    level = roots
    for depth in range(_MAX_DEPTH):
        inner = level[first[level] != level]
        if not inner.size:
            return depth
        level = np.unique(np.concatenate([first[inner], second[inner]]))
    raise UnknownValueError
