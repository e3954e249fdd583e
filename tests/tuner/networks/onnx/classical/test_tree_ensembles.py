"""TreeEnsemble, whose leaves are in lists of their own, computes what it does in ONNX Runtime."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.tuner.networks.models import run
from tuner.errors import ModelError
from tuner.networks.onnx.cleaning import clean


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
    graph = helper.make_graph(
        [helper.make_node("TreeEnsemble", ["data"], ["y"], domain="ai.onnx.ml", **tensors)],
        "test",
        [helper.make_tensor_value_info("data", kind, (64, 3))],
        [helper.make_tensor_value_info("y", kind, (64, 2))],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 5)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


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
