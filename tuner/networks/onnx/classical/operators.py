"""Replacement of the operators of classical machine learning (ai.onnx.ml) by tensor operators.

Strings, and tables of trees above the limit of all tables, stay.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tuner.errors import ModelError
from tuner.networks.onnx.classical import support_vectors
from tuner.networks.onnx.classical.trees import (
    Trees,
    classifier_scores,
    depth_of,
    find_leaves,
    regressor_scores,
)
from tuner.networks.onnx.graph import Array, attribute
from tuner.networks.onnx.node_builder import Replacement, UnknownValueError, since

DOMAIN = "ai.onnx.ml"

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


def _floats(b: Replacement, index: int = 0) -> str:
    """Return an input as float32."""
    return b.add("Cast", b.input(index), to=TensorProto.FLOAT)


def _scaler(b: Replacement) -> None:
    value = _floats(b)
    offset, scale = b.numbers("offset"), b.numbers("scale")
    if offset.size:
        value = b.add("Sub", value, b.constant(offset))
    factor = b.constant(scale if scale.size else np.ones(1, np.float32))
    b.add("Mul", value, factor, output=b.node.output[0])


def _normalizer(b: Replacement) -> None:
    """Replace by a quotient; rows of zeros stay as they are."""
    value, norm = _floats(b), b.attribute("norm", b"MAX").decode()
    if norm == "MAX":
        total = b.reduce("ReduceMax", value, -1)
    elif norm == "L1":
        total = b.reduce("ReduceSum", b.add("Abs", value), -1)
    else:
        total = b.add("Sqrt", b.reduce("ReduceSum", b.add("Mul", value, value), -1))
    is_zero = b.add("Equal", total, b.number(0))
    divisor = b.add("Where", is_zero, b.number(1), total)
    b.add("Div", value, divisor, output=b.node.output[0])


def _binarizer(b: Replacement) -> None:
    dtype = b.dtype(b.input(0))
    threshold = b.constant(np.array(b.attribute("threshold", 0.0), dtype))
    is_above = b.add("Greater", b.input(0), threshold)
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    b.add("Cast", is_above, to=kind, output=b.node.output[0])


def _imputer(b: Replacement) -> None:
    dtype = b.dtype(b.input(0))
    kind = "float" if dtype.kind == "f" else "int64"
    values = np.array(b.attribute(f"imputed_value_{kind}s"), dtype)
    replaced = b.attribute(f"replaced_value_{kind}", 0)
    if values.size > 1 and len(b.shape(b.input(0))) > 2:
        raise UnknownValueError  # ONNX Runtime repeats the values with the second axis
    if dtype.kind == "f" and np.isnan(replaced):
        is_missing = b.add("IsNaN", b.input(0))
    else:
        is_missing = b.add("Equal", b.input(0), b.constant(np.array(replaced, dtype)))
    b.add("Where", is_missing, b.constant(values), b.input(0), output=b.node.output[0])


def _array_feature_extractor(b: Replacement) -> None:
    value = b.input(0)
    n_columns = b.shape(value)[-1]
    with suppress(UnknownValueError):
        columns = b.array(1)
        if columns is not None and not 0 <= columns.min() <= columns.max() < n_columns:
            raise ValueError(f"column {columns.max()} of {n_columns}")
    if len(b.shape(value)) == 1:
        value = b.reshape(value, 1, -1)
    b.add("Gather", value, b.reshape(b.input(1), -1), axis=-1, output=b.node.output[0])


def _feature_vectorizer(b: Replacement) -> None:
    columns = []
    for index, width in enumerate(b.attribute("inputdimensions", [])):
        shape = b.shape(b.input(index))
        if shape[-1] != width:
            raise UnknownValueError
        columns.append(b.reshape(_floats(b, index), shape[0] if len(shape) > 1 else 1, -1))
    if not columns:
        raise UnknownValueError
    b.add("Concat", *columns, axis=1, output=b.node.output[0])


def _one_hot_encoder(b: Replacement) -> None:
    categories = b.attribute("cats_int64s", [])
    is_plain = len(set(categories)) == len(categories) > 0
    if not is_plain or not b.attribute("zeros", 1):
        raise UnknownValueError
    whole = b.add("Cast", b.input(0), to=TensorProto.INT64)
    places = b.reshape(whole, *b.shape(b.input(0)), 1)
    is_hot = b.add("Equal", places, b.constant(np.array(categories)))
    b.add("Cast", is_hot, to=TensorProto.FLOAT, output=b.node.output[0])


def _label_encoder(b: Replacement) -> None:
    """Replace by a look-up at the place of the key, or of the default behind them all."""
    keys = b.attribute("keys_int64s") or b.attribute("keys_floats")
    for kind, dtype, default in (("int64", np.int64, -1), ("float", np.float32, -0.0)):
        values = b.attribute(f"values_{kind}s")
        if keys and values:
            table = np.array([*values, b.attribute(f"default_{kind}", default)], dtype)
            break
    else:
        raise UnknownValueError
    shape = b.shape(b.input(0))
    b.check_table(*shape)
    given = b.constant(np.array(keys, b.dtype(b.input(0))))
    is_key = b.add("Equal", b.reshape(b.input(0), *shape, 1), given)
    flags = b.add("Cast", is_key, to=TensorProto.FLOAT)
    rest = b.constant(np.full((*shape, 1), 0.5, np.float32))
    place = b.add("ArgMax", b.add("Concat", flags, rest, axis=-1), axis=-1, keepdims=0)
    b.add("Gather", b.constant(table), place, output=b.node.output[0])


def _linear(b: Replacement, n_targets: int) -> str:
    """Return the products with the coefficients plus the intercepts, (rows, targets)."""
    weights = b.numbers("coefficients").reshape(n_targets, -1)
    width = b.shape(b.input(0))[-1]
    if weights.shape[1] != width:
        raise ValueError(f"{weights.shape[1]} coefficients of each target, and {width} features")
    value = b.reshape(_floats(b), -1, width)
    product = b.add("MatMul", value, b.constant(np.ascontiguousarray(weights.T)))
    shift = b.numbers("intercepts")
    if shift.size not in (0, n_targets):
        raise ValueError(f"{shift.size} intercepts, and {n_targets} targets")
    return b.add("Add", product, b.constant(shift)) if shift.size else product


def _linear_regressor(b: Replacement) -> None:
    n_targets = int(b.attribute("targets", 1))
    _regression(b, _linear(b, n_targets), n_targets)


def _regression(b: Replacement, scores: str, n_targets: int) -> None:
    # ONNX Runtime transforms the score of a single target by none of these functions.
    if n_targets == 1 and b.attribute("post_transform", b"NONE") != b"PROBIT":
        b.add("Identity", scores, output=b.node.output[0])
    else:
        _transformed(b, scores, b.node.output[0])


def _linear_classifier(b: Replacement) -> None:
    labels = b.attribute("classlabels_ints", [])
    n_scores = len(b.numbers("intercepts")) or len(labels)
    scores = _linear(b, n_scores)
    if n_scores == 1 and len(labels) == 2:
        # Append the label and both scores of one score, (rows, 1), of the second class.
        score = scores
        kind = b.attribute("post_transform", b"NONE").decode()
        if kind == "LOGISTIC":
            score = b.add("Sigmoid", score)
        elif kind != "NONE":
            raise UnknownValueError
        other = b.add("Sub", b.number(1), score)
        limit = b.number(0.5 if kind == "LOGISTIC" else 0)
        is_second = b.reshape(b.add("Greater", score, limit), -1)
        first, second = (b.constant(np.array(label, np.int64)) for label in labels)
        b.add("Where", is_second, second, first, output=b.node.output[0])
        b.add("Concat", other, score, axis=1, output=b.node.output[1])
    else:
        _classify(b, scores, labels)


def _classify(b: Replacement, scores: str, labels: list[int]) -> None:
    """Append the label of the largest of the scores, (rows, classes), and all of them."""
    if not labels:
        raise UnknownValueError
    place = b.add("ArgMax", scores, axis=1, keepdims=0)
    b.add("Gather", b.constant(np.array(labels, np.int64)), place, output=b.node.output[0])
    _transformed(b, scores, b.node.output[1])


def _transformed(b: Replacement, scores: str, output: str) -> None:
    kind = b.attribute("post_transform", b"NONE").decode()
    operators = {"NONE": "Identity", "LOGISTIC": "Sigmoid", "SOFTMAX": "Softmax"}
    if kind not in operators:
        raise UnknownValueError
    attributes = {"axis": 1} if kind == "SOFTMAX" else {}
    b.add(operators[kind], scores, output=output, **attributes)


def _tree_regressor(b: Replacement) -> None:
    n_targets = int(b.attribute("n_targets", 1))
    _regression(b, regressor_scores(b, n_targets), n_targets)


def _tree_classifier(b: Replacement) -> None:
    labels, ids = b.attribute("classlabels_int64s", []), set(b.attribute("class_ids", []))
    if len(labels) > 2:
        _classify(b, classifier_scores(b, range(len(labels))), labels)
        return
    # Of two classes, the second has the label in ONNX Runtime if its own score is high enough:
    # above a half where the trees give its probability alone.
    if len(labels) == 2 and ids == {0}:
        is_positive = not (b.numbers("class_weights") < 0).any()
        score = classifier_scores(b, range(1))
        # The score of the second class may be a probability.
        kind = b.attribute("post_transform", b"NONE")
        if kind == b"NONE" and is_positive:
            other = b.add("Sub", b.number(1), score)
        elif kind in (b"NONE", b"LOGISTIC"):
            other = b.add("Neg", score)
        else:
            raise UnknownValueError
        scores = b.add("Concat", other, score, axis=1)
        limit = 0.5 if is_positive else 0
    elif labels == [0, 1] and ids == {0, 1} and not b.attribute("base_values"):
        scores = classifier_scores(b, range(2))
        score, limit = b.add("Gather", scores, b.constant(np.array([1])), axis=1), 0
    else:
        raise UnknownValueError
    is_second = b.add("Greater", score, b.number(limit))
    first, second = (b.constant(np.array(label, np.int64)) for label in labels)
    b.add("Where", b.reshape(is_second, -1), second, first, output=b.node.output[0])
    _transformed(b, scores, b.node.output[1])


def _support_vector_regressor(b: Replacement) -> None:
    b.add("Identity", support_vectors.regression_scores(b), output=b.node.output[0])


def _support_vector_classifier(b: Replacement) -> None:
    labels = b.attribute("classlabels_ints", [])
    place, scores = support_vectors.class_scores(b, len(labels))
    b.add("Gather", b.constant(np.array(labels, np.int64)), place, output=b.node.output[0])
    # Of two classes without probabilities, ONNX Runtime's Softmax is another function.
    if (
        len(labels) == 2
        and not b.attribute("prob_a")
        and b.attribute("post_transform") == b"SOFTMAX"
    ):
        raise UnknownValueError
    _transformed(b, scores, b.node.output[1])


CLASSICAL: dict[str, Callable[[Replacement], None]] = {
    "ArrayFeatureExtractor": _array_feature_extractor,
    "Binarizer": _binarizer,
    "FeatureVectorizer": _feature_vectorizer,
    "Imputer": _imputer,
    "LabelEncoder": since(11, _label_encoder),
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
    "Normalizer": since(11, _normalizer),
    "OneHotEncoder": _one_hot_encoder,
    "SVMClassifier": since(11, _support_vector_classifier),
    "SVMRegressor": _support_vector_regressor,
    "Scaler": _scaler,
    "TreeEnsemble": replace_tree_ensemble,
    "TreeEnsembleClassifier": _tree_classifier,
    "TreeEnsembleRegressor": _tree_regressor,
}


def open_maps(model: onnx.ModelProto) -> tuple[str, ...]:
    """Replace each output of a ZipMap by the tensor of its scores, in place.

    Its columns are in the order of the labels, as the keys of the maps are in ONNX Runtime.

    Returns:
        A note for each output.
    """
    graph = model.graph
    maps = {info.name: info for info in graph.output if info.type.HasField("sequence_type")}
    notes = []
    for node in graph.node:
        if (node.domain, node.op_type) != (DOMAIN, "ZipMap") or node.output[0] not in maps:
            continue
        labels: list[int] | list[bytes] = attribute(node, "classlabels_int64s", [])
        labels = labels or attribute(node, "classlabels_strings", [])
        if not labels:
            continue
        order = numpy_helper.from_array(np.argsort(labels), f"{node.output[0]}_order")
        graph.initializer.append(order)
        # Of the same domain: forests without a version of the standard are raised later.
        node.CopyFrom(
            helper.make_node(
                *("ArrayFeatureExtractor", [node.input[0], order.name], node.output), domain=DOMAIN
            )
        )
        info = maps[node.output[0]]
        info.CopyFrom(
            helper.make_tensor_value_info(info.name, onnx.TensorProto.FLOAT, [None, len(labels)])
        )
        notes.append(f"{info.name} has a column for each of {len(labels)} classes, not maps")
    return tuple(notes)
