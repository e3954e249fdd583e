"""Replacement of TreeEnsemble, whose leaves are in lists of their own."""

from dataclasses import replace

import numpy as np
from onnx import numpy_helper

from tuner.errors import ModelError
from tuner.networks.onnx.classical.trees import Trees, depth_of, find_leaves
from tuner.networks.onnx.graph import Array
from tuner.networks.onnx.node_builder import Replacement, UnknownValueError

# Comparisons by the number of their mode; membership and inequality are not among them.
_COMPARISONS = ("LessOrEqual", "Less", "GreaterOrEqual", "Greater", "Equal")
_AVERAGE, _SUM = 0, 1


def replace_tree_ensemble(b: Replacement) -> None:
    """Replace sums or averages of the weights of leaves.

    Raises:
        UnknownValueError: If this function cannot express what ONNX Runtime computes.
        ModelError: If the attributes do not describe trees.
    """
    how = int(b.attribute("aggregate_function", _SUM))
    # ONNX Runtime numbers the transforms otherwise than the standard.
    if how not in (_AVERAGE, _SUM) or b.attribute("post_transform", 0) or b.opset < 13:
        raise UnknownValueError
    dtype = np.promote_types(b.dtype(b.input(0)), np.float32)
    trees = _read(b, dtype)
    weights = _weights(b, len(trees.features), dtype)
    chosen = b.add("Gather", b.constant(weights), find_leaves(b, trees), axis=0)
    total = b.add("ReduceSum", chosen, b.constant(np.array([1])), keepdims=0)
    if how == _AVERAGE:
        total = b.add("Div", total, b.constant(np.array(len(trees.roots), dtype)))
    b.from_float(total, b.dtype(b.input(0)), b.node.output[0])


def _read(b: Replacement, dtype: np.dtype[np.generic]) -> Trees:
    """Return the tables of the nodes, which the leaves follow."""
    names = ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")
    features, firsts, seconds, is_first_leaf, is_second_leaf = (
        np.array(b.attribute(f"nodes_{name}"), np.int64) for name in names
    )
    modes, splits = (numpy_helper.to_array(b.attribute(f"nodes_{n}")) for n in ("modes", "splits"))
    n_nodes, n_leaves = len(features), len(b.attribute("leaf_targetids"))
    missing = b.attribute("nodes_missing_value_tracks_true") or [0] * n_nodes
    lists = (firsts, seconds, is_first_leaf, is_second_leaf, modes, splits, missing)
    if any(len(each) != n_nodes for each in lists) or not n_nodes:
        raise _malformed("its lists of nodes are empty or have several lengths")
    if len(np.unique(modes)) > 1 or modes[0] >= len(_COMPARISONS):
        raise UnknownValueError
    b.check_table(n_nodes + n_leaves, 5)
    own = np.arange(n_nodes + n_leaves)
    first, second = (
        np.concatenate([np.where(is_leaf, n_nodes + child, child), own[n_nodes:]])
        for child, is_leaf in ((firsts, is_first_leaf), (seconds, is_second_leaf))
    )
    roots = np.array(b.attribute("tree_roots"), np.int64)
    for each in (first, second, roots):
        if not len(each) or each.min() < 0 or each.max() >= len(own):
            raise _malformed("a node does not exist")
    if features.min() < 0:
        raise _malformed("a node reads a feature below 0")
    rest = np.zeros(n_leaves)
    trees = Trees(
        np.concatenate([features, rest.astype(np.int64)]),
        np.concatenate([splits, rest]).astype(dtype),
        first,
        second,
        roots,
        0,
        {},
        _COMPARISONS[int(modes[0])],
        np.concatenate([missing, rest]).astype(np.bool_),
    )
    return replace(trees, depth=depth_of(first, second, roots))


def _weights(b: Replacement, n_rows: int, dtype: np.dtype[np.generic]) -> Array:
    """Return the weight of each node and leaf for each target."""
    n_targets = int(b.attribute("n_targets", 1))
    targets = np.array(b.attribute("leaf_targetids"), np.int64)
    values = numpy_helper.to_array(b.attribute("leaf_weights"))
    if len(values) != len(targets) or targets.min() < 0 or targets.max() >= n_targets:
        raise _malformed("a leaf has no weight, or one of a target that does not exist")
    b.check_table(n_rows, n_targets)
    table = np.zeros((n_rows, n_targets), dtype)
    table[np.arange(n_rows - len(targets), n_rows), targets] = values
    return table


def _malformed(reason: str) -> ModelError:
    return ModelError(
        f"the trees of a TreeEnsemble do not fit together: {reason}", code="invalid-model"
    )
