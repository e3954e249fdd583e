"""Operators of classical machine learning compute what ONNX Runtime computes."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.tuner.networks import models
from tests.tuner.networks.models import Array, model, run
from tests.tuner.networks.single_nodes import both, node_model
from tuner.errors import ModelError
from tuner.networks.onnx.cleaning import clean

_RNG = np.random.default_rng(0)
_DATA = _RNG.standard_normal((20, 4)).astype("float32")
_GAPS = np.where(_DATA > 0, np.nan, _DATA).astype("float32")
_ROWS = np.vstack([_DATA[:3], np.zeros((1, 4)), -np.ones((1, 4))]).astype("float32")
_TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX"]


def check(op: str, *operands: Array, n_outputs: int = 1, **attributes: Any) -> None:
    """Compare the outputs of a model with those of its cleaned form."""
    feeds = {f"x{index}": each for index, each in enumerate(operands)}
    proto = node_model(f"ai.onnx.ml:{op}", feeds, [*feeds], n_outputs=n_outputs, **attributes)
    for actual, expected in zip(*both(proto, feeds), strict=True):
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [
        ("Scaler", [_DATA], {"offset": [1.0, 2.0, 3.0, 4.0], "scale": [2.0, 1.0, 1.0, 0.5]}),
        ("Scaler", [np.arange(8).reshape(2, 4)], {"offset": [1.0], "scale": [2.0]}),
        ("Normalizer", [_ROWS], {"norm": "MAX"}),
        ("Normalizer", [_ROWS], {"norm": "L1"}),
        ("Normalizer", [_ROWS], {"norm": "L2"}),
        ("Binarizer", [_DATA], {"threshold": 0.3}),
        (
            "Imputer",
            [_GAPS],
            {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0], "replaced_value_float": float("nan")},
        ),
        ("ArrayFeatureExtractor", [_DATA, np.array([2, 0])], {}),
        ("ArrayFeatureExtractor", [_DATA[0], np.array([2, 0])], {}),
        ("FeatureVectorizer", [_DATA, _DATA[:, :2]], {"inputdimensions": [4, 2]}),
        ("OneHotEncoder", [np.array([[1, 3], [2, 9]])], {"cats_int64s": [1, 2, 3]}),
        (
            "LabelEncoder",
            [np.array([1, 3, 7])],
            {"keys_int64s": [1, 3], "values_floats": [0.5, 0.7], "default_float": 9.0},
        ),
        (
            "LabelEncoder",
            [np.array([[1, 3, 7]])],
            {"keys_int64s": [1, 3], "values_int64s": [5, 7]},
        ),
    ],
)
def test_features(op: str, operands: list[Array], attributes: dict[str, Any]) -> None:
    """Rows of zeros, unknown keys and single rows included."""
    check(op, *operands, **attributes)


def test_columns_by_indices_of_several_axes() -> None:
    """They are one row, which the Reshape behind makes a column."""
    nodes = [
        helper.make_node("ArgMin", ["data"], ["places"], axis=1),
        helper.make_node(
            "ArrayFeatureExtractor", ["table", "places"], ["row"], domain="ai.onnx.ml"
        ),
        helper.make_node("Reshape", ["row", "column"], ["y"]),
    ]
    weights = {"table": _RNG.standard_normal(4).astype("float32"), "column": np.array([-1, 1])}
    proto = model(nodes, {"data": _DATA.shape}, {"y": (20, 1)}, weights)
    proto.opset_import.add(domain="ai.onnx.ml", version=1)

    actual, expected = both(proto, {"data": _DATA})

    np.testing.assert_array_equal(actual[0], expected[0])


@pytest.mark.parametrize("transform", _TRANSFORMS)
def test_linear_models(transform: str) -> None:
    """Several targets and classes have a score each."""
    scores: dict[str, Any] = {
        "coefficients": [float(each) for each in _RNG.standard_normal(12)],
        "intercepts": [0.1, 0.2, 0.3],
        "post_transform": transform,
    }
    check("LinearRegressor", _DATA, targets=3, **scores)
    check("LinearClassifier", _DATA, n_outputs=2, classlabels_ints=[3, 5, 9], **scores)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_a_linear_model_of_two_classes(transform: str) -> None:
    """One score is that of the second class."""
    coefficients = [float(each) for each in _RNG.standard_normal(4)]
    check(
        "LinearClassifier",
        _DATA,
        n_outputs=2,
        classlabels_ints=[3, 5],
        coefficients=coefficients,
        intercepts=[0.1],
        post_transform=transform,
    )


def machine(kernel: str, counts: list[int], **attributes: Any) -> dict[str, Any]:
    """Return the attributes of a support vector machine with numbers of vectors of each class."""
    n_rows = max(1, len(counts) - 1) * sum(counts)
    numbers = {"coefficients": n_rows, "support_vectors": 4 * sum(counts)}
    drawn = {name: [*map(float, _RNG.standard_normal(n))] for name, n in numbers.items()}
    n_pairs = max(1, len(counts) * (len(counts) - 1) // 2)
    offsets = {"rho": [0.1, -0.4, 0.2][:n_pairs]}
    return drawn | offsets | {"kernel_type": kernel, "kernel_params": [0.3, 0.2, 3.0]} | attributes


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_support_vectors(kernel: str) -> None:
    """Classes win by votes of pairs, of which each has a score."""
    check("SVMRegressor", _DATA, n_supports=5, **machine(kernel, [5]))
    check("SVMRegressor", _DATA, n_supports=5, one_class=1, **machine(kernel, [5]))
    for transform in _TRANSFORMS:
        labels, scores = [3, 5, 9], machine(kernel, [2, 3, 2], post_transform=transform)
        counts = {"vectors_per_class": [2, 3, 2], "classlabels_ints": labels}
        check("SVMClassifier", _DATA, n_outputs=2, **scores, **counts)


@pytest.mark.parametrize("slopes", [{}, {"prob_a": [-1.1], "prob_b": [0.2]}])
def test_support_vectors_of_two_classes(slopes: dict[str, list[float]]) -> None:
    """Both have a score, or a probability."""
    for transform in _TRANSFORMS if slopes else _TRANSFORMS[:2]:
        scores = machine("RBF", [3, 2], post_transform=transform, **slopes)
        counts = {"vectors_per_class": [3, 2], "classlabels_ints": [3, 5]}
        check("SVMClassifier", _DATA, n_outputs=2, **scores, **counts)


def forest(kind: str, ids: list[int], low: float, mode: str = "BRANCH_LEQ") -> dict[str, Any]:
    """Return the attributes of five random trees, unbalanced and up to four levels deep.

    Args:
        kind: ``target`` or ``class``.
        ids: Targets or classes that each leaf has a weight for.
        low: Least weight; the largest is 1.
        mode: Comparison of all decisions.
    """
    nodes: list[dict[str, Any]] = []
    leaves: list[dict[str, Any]] = []

    def grow(tree: int, level: int) -> int:
        number = sum(each["treeids"] == tree for each in nodes)
        node = {"treeids": tree, "nodeids": number, "modes": "LEAF", "featureids": 0}
        node |= {"values": 0.0, "truenodeids": 0, "falsenodeids": 0}
        nodes.append(node)
        if level < 4 and (level == 0 or _RNG.random() < 0.8):
            node["modes"], node["featureids"] = mode, int(_RNG.integers(0, 4))
            node["values"] = float(_RNG.standard_normal())
            node["truenodeids"] = grow(tree, level + 1)
            node["falsenodeids"] = grow(tree, level + 1)
            return int(number)
        for each in ids:
            weight = float(_RNG.uniform(low, 1))
            leaves.append({"treeids": tree, "nodeids": number, "ids": each, "weights": weight})
        return int(number)

    for tree in range(5):
        grow(tree, 0)
    columns = {f"nodes_{key}": [each[key] for each in nodes] for key in nodes[0]}
    return columns | {f"{kind}_{key}": [each[key] for each in leaves] for key in leaves[0]}


@pytest.mark.parametrize("transform", _TRANSFORMS)
def test_forests(transform: str) -> None:
    """Several targets and classes have a score each."""
    trees = forest("target", [0, 1], -1)
    check("TreeEnsembleRegressor", _DATA, n_targets=2, post_transform=transform, **trees)
    trees = forest("class", [0, 1, 2], -1)
    labels: dict[str, Any] = {"n_outputs": 2, "classlabels_int64s": [3, 5, 9]}
    check("TreeEnsembleClassifier", _DATA, post_transform=transform, **labels, **trees)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_an_average_of_trees(transform: str) -> None:
    """A single target is not transformed."""
    trees = forest("target", [0], -1, "BRANCH_LT")
    how: dict[str, Any] = {
        "aggregate_function": "AVERAGE",
        "base_values": [0.5],
        "post_transform": transform,
    }
    check("TreeEnsembleRegressor", _DATA, n_targets=1, **how, **trees)


@pytest.mark.parametrize("mode", ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GT"])
def test_missing_values_have_a_side(mode: str) -> None:
    """A node says which, as those of LightGBM and XGBoost do."""
    trees = forest("target", [0, 1], -1, mode)
    sides = _RNG.integers(0, 2, len(trees["nodes_modes"])).tolist()
    check(
        "TreeEnsembleRegressor", _GAPS, n_targets=2, nodes_missing_value_tracks_true=sides, **trees
    )
    with pytest.raises(ModelError, match="several lengths"):
        clean(
            model_of(
                "TreeEnsembleRegressor",
                _GAPS,
                n_targets=2,
                nodes_missing_value_tracks_true=[1],
                **trees,
            )
        )


@pytest.mark.parametrize("opset", [None, 8, 9, 11])
def test_forests_of_old_versions(opset: int | None) -> None:
    """Converters write the lowest version of the standard, or none where no node is of it."""
    proto = model_of("TreeEnsembleRegressor", _DATA, n_targets=1, **forest("target", [0], -1))
    del proto.opset_import[:]
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    if opset is not None:
        proto.opset_import.append(helper.make_opsetid("", opset))
        proto.graph.node.append(helper.make_node("Identity", [proto.graph.output[0].name], ["y"]))
        proto.graph.output[0].name = "y"

    for actual, expected in zip(*both(proto, {"x": _DATA}), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("low", [-1, 0])
@pytest.mark.parametrize("ids", [[0], [0, 1]])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_forests_of_two_classes(low: float, ids: list[int], transform: str) -> None:
    """Weights are those of one class or both; without one below 0 they are probabilities."""
    trees = forest("class", ids, low)
    labels: dict[str, Any] = {"n_outputs": 2, "classlabels_int64s": [0, 1]}
    check("TreeEnsembleClassifier", _DATA, post_transform=transform, **labels, **trees)


def test_a_weight_that_is_no_number() -> None:
    """It is not below 0, so that the others are probabilities still."""
    trees = forest("class", [0], 0)
    trees["class_weights"][0] = float("nan")
    check("TreeEnsembleClassifier", _DATA, n_outputs=2, classlabels_int64s=[4, 9], **trees)


def test_probabilities_of_both_classes() -> None:
    """As scikit-learn's forests give them: the second has the label wherever it is above 0."""
    trees = forest("class", [0, 1], 0)
    weights = np.array(trees["class_weights"]).reshape(-1, 2)
    shares = weights / weights.sum(axis=1, keepdims=True) / 5
    shares[::3] = [0.2, 0.0]
    trees["class_weights"] = [float(each) for each in shares.ravel()]
    check("TreeEnsembleClassifier", _DATA, n_outputs=2, classlabels_int64s=[0, 1], **trees)


@pytest.mark.parametrize("transform", _TRANSFORMS)
def test_a_linear_model_of_one_target_is_not_transformed(transform: str) -> None:
    """As in ONNX Runtime."""
    coefficients = [float(each) for each in _RNG.standard_normal(4)]
    check("LinearRegressor", _DATA, coefficients=coefficients, post_transform=transform)


def of_one(kind: str, count: int, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return trees whose leaves have a weight of one target or class each, in turns."""
    ids = [index % count for index, _ in enumerate(attributes[f"{kind}_ids"])]
    return attributes | {f"{kind}_ids": ids}


def model_of(op: str, data: Array = _DATA, **attributes: Any) -> onnx.ModelProto:
    """Return a model of one node."""
    n_outputs = 2 if op.endswith("Classifier") else 1
    return node_model(f"ai.onnx.ml:{op}", {"x": data}, ["x"], n_outputs=n_outputs, **attributes)


def test_scores_that_a_row_may_lack() -> None:
    """They are not compared, and nothing is added to them: such trees are refused later."""
    plain = of_one("target", 2, forest("target", [0], -1))
    check("TreeEnsembleRegressor", _DATA, n_targets=2, **plain)
    classes = of_one("class", 3, forest("class", [0], -1))
    for proto in (
        model_of("TreeEnsembleRegressor", n_targets=2, base_values=[0.1, 0.2], **plain),
        model_of("TreeEnsembleClassifier", classlabels_int64s=[3, 5, 9], **classes),
        model_of(
            "TreeEnsembleClassifier",
            classlabels_int64s=[0, 1],
            base_values=[0.1, 0.2],
            **forest("class", [0, 1], -1),
        ),
    ):
        kept = onnx.load_from_string(clean(proto).model).graph.node
        assert [node.domain for node in kept] == ["ai.onnx.ml"]


def test_a_weight_that_is_repeated_counts_once() -> None:
    """As skl2onnx writes the number of a leaf, once for each class."""
    attributes = forest("target", [0], -1)
    for name in [key for key in attributes if key.startswith("target_")]:
        attributes[name] = [each for each in attributes[name] for _ in range(3)]

    check("TreeEnsembleRegressor", _DATA, n_targets=1, **attributes)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("nodes_nodeids", [0]),
        ("nodes_nodeids", None),
        ("nodes_truenodeids", 99),
        ("nodes_featureids", -1),
        ("target_nodeids", 99),
        ("target_nodeids", 1),
        ("target_ids", 5),
        ("target_weights", [0.5]),
    ],
)
def test_trees_that_do_not_fit_together(name: str, values: Any) -> None:
    """Missing nodes, several of a name, several weights of a leaf, lists of another length."""
    proto = model_of("TreeEnsembleRegressor", n_targets=1, **forest("target", [0], -1))
    (node,) = proto.graph.node
    (changed,) = (each for each in node.attribute if each.name == name)
    count = len(changed.ints or changed.floats or changed.strings)
    new = values if isinstance(values, list) else [values or 0] * count
    changed.CopyFrom(helper.make_attribute(name, new))

    with pytest.raises(ModelError, match="trees of a TreeEnsembleRegressor do not fit") as caught:
        clean(proto)

    assert caught.value.code == "invalid-model"


def is_replaced(proto: onnx.ModelProto) -> bool:
    """Return whether a model has standard operators only once it is cleaned."""
    try:
        network = clean(proto)
    except ModelError as error:
        if error.code != "unsupported-operator":
            raise
        return False
    return not any(node.domain for node in onnx.load_from_string(network.model).graph.node)


def test_nodes_in_another_order_stay() -> None:
    """ONNX Runtime begins at the first node of a tree, whatever leads to it."""
    trees = forest("target", [0], -1)
    turned = {name: values[::-1] if "nodes_" in name else values for name, values in trees.items()}

    assert is_replaced(model_of("TreeEnsembleRegressor", n_targets=1, **trees))
    assert not is_replaced(model_of("TreeEnsembleRegressor", n_targets=1, **turned))


@pytest.mark.parametrize(
    ("name", "values"),
    [("targets", 5), ("coefficients", [0.5] * 9), ("intercepts", [0.5])],
)
def test_linear_models_that_do_not_fit_the_data(name: str, values: Any) -> None:
    """Coefficients for another number of targets, or of features."""
    proto = model_of("LinearRegressor", targets=3, coefficients=[0.5] * 12, intercepts=[0.1] * 3)
    (node,) = proto.graph.node
    (changed,) = (each for each in node.attribute if each.name == name)
    changed.CopyFrom(helper.make_attribute(name, values))

    with pytest.raises(ModelError, match="attributes of a LinearRegressor do not fit") as caught:
        clean(proto)

    assert caught.value.code == "invalid-model"


@pytest.mark.parametrize(
    ("op", "operand", "attributes"),
    [
        ("OneHotEncoder", np.array([1, 3]), {"cats_int64s": [1, 1, 3]}),
        ("Imputer", _GAPS[None], {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0]}),
    ],
)
def test_what_the_standard_leaves_open_stays(
    op: str, operand: Array, attributes: dict[str, Any]
) -> None:
    """ONNX Runtime sets the last of equal categories, and repeats values with the second axis."""
    assert not is_replaced(node_model(f"ai.onnx.ml:{op}", {"x": operand}, ["x"], **attributes))


def test_a_table_of_rows_and_trees_may_be_too_large() -> None:
    """It is refused before it is made."""
    rows = np.zeros((1 << 23, 4), np.float32)

    with pytest.raises(ModelError) as caught:
        clean(model_of("TreeEnsembleRegressor", rows, n_targets=1, **forest("target", [0], -1)))

    assert caught.value.code == "too-large"
    codes: dict[str, Any] = {"keys_int64s": [1], "values_int64s": [2]}
    proto = node_model("ai.onnx.ml:LabelEncoder", {"x": np.zeros(2, np.int64)}, ["x"], **codes)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1 << 26
    with pytest.raises(ModelError) as caught:
        clean(proto)
    assert caught.value.code == "too-large"


def test_what_has_no_replacement_is_named_with_its_shapes() -> None:
    """The code is that of operators, though no shape behind it is known."""
    counts = {"vectors_per_class": [2, 3, 2], "classlabels_ints": [3, 5, 9]}
    slopes = {"prob_a": [-1.0] * 3, "prob_b": [0.0] * 3}
    attributes = machine("LINEAR", [2, 3, 2]) | counts | slopes
    proto = node_model(
        "ai.onnx.ml:SVMClassifier", {"data": _DATA}, ["data"], n_outputs=2, **attributes
    )

    with pytest.raises(ModelError, match=r"SVMClassifier of \(20, 4\); convert") as caught:
        clean(proto)

    assert caught.value.code == "unsupported-operator"


def ensemble(dtype: str = "float32", mode: int = 0, **changes: Any) -> onnx.ModelProto:
    """Return two trees, one of two decisions and one of a single one, with five leaves."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    attributes: dict[str, Any] = {
        "n_targets": 2,
        "tree_roots": [0, 2],
        "nodes_featureids": [1, 0, 2],
        "nodes_splits": np.array([0.5, -0.25, 0.1], dtype),
        "nodes_modes": np.full(3, mode, "uint8"),
        "nodes_truenodeids": [1, 0, 3],
        "nodes_trueleafs": [0, 1, 1],
        "nodes_falsenodeids": [2, 1, 4],
        "nodes_falseleafs": [1, 1, 1],
        "nodes_missing_value_tracks_true": [1, 0, 0],
        "leaf_targetids": [0, 1, 0, 1, 0],
        "leaf_weights": np.array([1.5, -2.0, 3.0, 0.5, -1.0], dtype),
        **changes,
    }
    tensors = {
        name: numpy_helper.from_array(each) if isinstance(each, np.ndarray) else each
        for name, each in attributes.items()
    }
    return models.model(
        [helper.make_node("TreeEnsemble", ["data"], ["y"], domain="ai.onnx.ml", **tensors)],
        {"data": (64, 3)},
        {"y": (64, 2)},
        kinds={"data": kind, "y": kind},
        opset={"": 18, "ai.onnx.ml": 5},
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize("options", [{}, {"aggregate_function": 0}])
def test_sums_of_leaves(dtype: str, mode: int, options: dict[str, int]) -> None:
    """All comparisons; missing values go where the node says."""
    data = np.random.default_rng(0).standard_normal((64, 3)).astype(dtype)
    data[:8, 1] = np.nan
    data[8:16, 0] = -0.25
    proto = ensemble(dtype, mode, **options)

    network = clean(proto)

    nodes = onnx.load_from_string(network.model).graph.node
    assert not {node.domain for node in nodes} - {""}
    expected = run(proto.SerializeToString(), {"data": data})[0]
    actual = run(network.model, {"data": data})[0]
    assert actual.dtype == dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize("changes", [{"post_transform": 2}, {"aggregate_function": 2}])
def test_other_scores_stay(changes: dict[str, Any]) -> None:
    """ONNX Runtime and the standard give the numbers of transforms other meanings."""
    (node,) = onnx.load_from_string(clean(ensemble(**changes)).model).graph.node

    assert node.op_type == "TreeEnsemble"


@pytest.mark.parametrize(
    "changes",
    [{"tree_roots": [0, 9]}, {"leaf_targetids": [0, 1, 0, 1, 2]}, {"nodes_featureids": [1, 0]}],
)
def test_trees_that_do_not_fit_together_are_refused(changes: dict[str, Any]) -> None:
    """Nodes and targets must exist, and lists be of one length."""
    with pytest.raises(ModelError, match="the trees of a TreeEnsemble do not fit") as caught:
        clean(ensemble(**changes))

    assert caught.value.code == "invalid-model"
