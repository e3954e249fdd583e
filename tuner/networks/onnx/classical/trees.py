"""Replacement of ensembles of decision trees: all trees descend a level at a time.

A level reads the feature and the threshold of the current node of each tree from tables, and
chooses the next node. Leaves lead to themselves, so that trees of any depth end together.

Where the standard leaves something open, the sums are those of ONNX Runtime.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from tuner.errors import ModelError
from tuner.networks.onnx.graph import Array
from tuner.networks.onnx.node_builder import Replacement, UnknownValueError

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
class Trees:
    """Tables of all nodes, each of shape (nodes,).

    Attributes:
        roots: Number of the first node of each tree.
        depth: Largest number of decisions before a leaf.
        index: Number of a node by tree and its number there.
        comparison: Operator of every decision.
        nan_first: True for nodes where a missing value goes to the first child.
    """

    features: Array
    thresholds: Array
    first: Array
    second: Array
    roots: Array
    depth: int
    index: dict[tuple[int, int], int]
    comparison: str
    nan_first: Array


@dataclass(frozen=True)
class _Weights:
    """Weights of leaves.

    Attributes:
        table: Weights by node and score, (nodes, scores).
        is_dense: True if every row gets a weight of every score: some tree has one in each leaf.
    """

    table: Array
    is_dense: bool


def regressor_scores(b: Replacement, n_targets: int) -> str:
    """Return the sums of the targets of a TreeEnsembleRegressor, (rows, targets).

    Raises:
        UnknownValueError: If this function cannot express what ONNX Runtime computes.
        ModelError: If the attributes do not describe trees.
    """
    trees = _read(b)
    weights = _weights(b, trees, "target", range(n_targets))
    is_plain = not b.attribute("base_values") and b.attribute("post_transform", b"NONE") == b"NONE"
    if n_targets > 1 and not (weights.is_dense or is_plain):
        raise UnknownValueError  # a target without a weight stays 0, whatever is added to others
    return _sums(b, trees, weights)


def classifier_scores(b: Replacement, class_ids: range) -> str:
    """Return the sums of some classes of a TreeEnsembleClassifier, (rows, classes).

    Raises:
        UnknownValueError: If this function cannot express what ONNX Runtime computes.
        ModelError: If the attributes do not describe trees.
    """
    trees = _read(b)
    weights = _weights(b, trees, "class", class_ids)
    if len(class_ids) > 1 and not weights.is_dense:
        raise UnknownValueError  # a class without a weight is not compared with others
    return _sums(b, trees, weights)


def _weights(b: Replacement, trees: Trees, kind: str, ids: range) -> _Weights:
    columns = [_list(b, f"{kind}_{name}") for name in ("treeids", "nodeids", "ids", "weights")]
    if len({len(column) for column in columns}) > 1:
        raise _malformed(b, "its lists of weights have several lengths")
    b.check_table(len(trees.features), len(ids))
    table = np.zeros((len(trees.features), len(ids)), np.float32)
    has_weight = np.zeros(table.shape, np.bool_)
    for tree, node, each, weight in zip(*columns, strict=True):
        if (tree, node) not in trees.index or each not in ids:
            raise _malformed(b, f"node {node} of tree {tree} has a weight of {kind} {each}")
        place = trees.index[tree, node], ids.index(each)
        if has_weight[place] and kind == "target" and len(ids) == 1:
            # Converters repeat the number of a leaf, which ONNX Runtime takes once.
            if table[place] == np.float32(weight):
                continue
            raise _malformed(b, f"node {node} of tree {tree} has several weights")
        table[place] += weight
        has_weight[place] = True
    return _Weights(table, _is_dense(trees, has_weight))


def _is_dense(trees: Trees, has_weight: Array) -> bool:
    """Return whether each score has a weight in all leaves of some tree."""
    is_leaf = trees.first == np.arange(len(trees.first))
    tree_of = np.array([tree for tree, _ in trees.index])
    whole = [has_weight[is_leaf & (tree_of == tree)].all(axis=0) for tree in np.unique(tree_of)]
    return bool(np.any(whole, axis=0).all())


def _sums(b: Replacement, trees: Trees, weights: _Weights) -> str:
    n_scores = weights.table.shape[1]
    chosen = b.add("Gather", b.constant(weights.table), find_leaves(b, trees), axis=0)
    how = b.attribute("aggregate_function", b"SUM").decode()
    if how not in ("SUM", "AVERAGE"):
        raise UnknownValueError
    total = b.add("ReduceSum", chosen, b.constant(np.array([1])), keepdims=0)
    if how == "AVERAGE":
        total = b.add("Div", total, b.constant(np.array(len(trees.roots), np.float32)))
    base = b.attribute("base_values", [])
    if base:
        if len(base) != n_scores:
            raise UnknownValueError
        total = b.add("Add", total, b.constant(np.array(base, np.float32)))
    return total


def find_leaves(b: Replacement, trees: Trees) -> str:
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
    nan_first = b.constant(trees.nan_first) if trees.nan_first.any() else ""
    b.check_table(n_rows, len(trees.roots))
    current = b.constant(np.tile(trees.roots, (n_rows, 1)))
    for _ in range(trees.depth):
        values = b.add("GatherElements", data, b.add("Gather", features, current), axis=1)
        is_first = b.add(trees.comparison, values, b.add("Gather", thresholds, current))
        if nan_first:
            is_missing = b.add("And", b.add("IsNaN", values), b.add("Gather", nan_first, current))
            is_first = b.add("Or", is_first, is_missing)
        current = b.add(
            "Where", is_first, b.add("Gather", first, current), b.add("Gather", second, current)
        )
    return current


def _read(b: Replacement) -> Trees:
    """Return the tables of the attributes.

    Raises:
        UnknownValueError: If decisions are of several kinds, or the nodes of a tree do not follow
            each other from its root on.
        ModelError: If the attributes do not describe trees.
    """
    if b.opset < 13 or len(b.shape(b.input(0))) != 2:
        raise UnknownValueError
    tree_ids, node_ids, features, firsts, seconds = (
        _list(b, f"nodes_{name}")
        for name in ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids")
    )
    modes, thresholds = _list(b, "nodes_modes"), _list(b, "nodes_values")
    lists = (tree_ids, node_ids, features, firsts, seconds, modes, thresholds)
    if len({len(each) for each in lists}) > 1 or not tree_ids:
        raise _malformed(b, "its lists of nodes are empty or have several lengths")
    kinds = {mode.decode(errors="replace") for mode in modes} - {"LEAF"}
    if len(kinds) > 1 or not kinds <= set(_COMPARISONS):
        raise UnknownValueError
    missing = b.attribute("nodes_missing_value_tracks_true") or [0] * len(tree_ids)
    if len(missing) != len(tree_ids):
        raise _malformed(b, "its lists of nodes have several lengths")
    index = {key: i for i, key in enumerate(zip(tree_ids, node_ids, strict=True))}
    if len(index) < len(tree_ids) or min(features) < 0:
        raise _malformed(b, "a node appears twice, or reads a feature below 0")
    first, second = np.arange(len(index)), np.arange(len(index))
    for i, mode in enumerate(modes):
        if mode != b"LEAF":
            first[i] = _child(b, index, tree_ids[i], firsts[i])
            second[i] = _child(b, index, tree_ids[i], seconds[i])
    places = np.arange(len(first))
    roots = np.setdiff1d(places, [*first[first != places], *second[second != places]])
    if len(roots) != len(set(tree_ids)):
        raise _malformed(b, "a tree has no root, or several")
    # ONNX Runtime begins where another tree begins among the nodes.
    if [*roots] != [i for i, tree in enumerate(tree_ids) if i == 0 or tree_ids[i - 1] != tree]:
        raise UnknownValueError
    depth = depth_of(first, second, roots)
    comparison = _COMPARISONS[kinds.pop()] if kinds else "LessOrEqual"
    floats = np.array(thresholds, np.float32)
    nan_first = np.array(missing, np.bool_)
    return Trees(
        np.array(features), floats, first, second, roots, depth, index, comparison, nan_first
    )


def _list(b: Replacement, name: str) -> list[Any]:
    """Return a list of an attribute.

    Raises:
        UnknownValueError: If there is none, as where a tensor takes its place.
    """
    values: list[Any] | None = b.attribute(name)
    if values is None:
        raise UnknownValueError
    return values


def _child(b: Replacement, index: Mapping[tuple[int, int], int], tree: int, node: int) -> int:
    if (tree, node) not in index:
        raise _malformed(b, f"tree {tree} has no node {node}")
    return index[tree, node]


def _malformed(b: Replacement, reason: str) -> ModelError:
    return ModelError(
        f"the trees of a {b.node.op_type} do not fit together: {reason}", code="invalid-model"
    )


def depth_of(first: Array, second: Array, roots: Array) -> int:
    """Return the number of levels after which every tree is at a leaf."""
    level = roots
    for depth in range(_MAX_DEPTH):
        inner = level[first[level] != level]
        if not inner.size:
            return depth
        level = np.unique(np.concatenate([first[inner], second[inner]]))
    raise UnknownValueError
