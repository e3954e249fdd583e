"""Names of a labelled model tell the nodes that a runtime fused."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tuner.networks.models import run
from tuner.engines.base import NetworkRun
from tuner.library.arrays import write_arrays
from tuner.peers import onnxruntime, openvino
from tuner.peers.base import PeerModel
from tuner.peers.graph_nodes import nodes_of, origins_in, read_graph, write_labelled

_INPUTS = {"x": ((2, 8), "float32")}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model of a Gemm, a Relu and a branch that reads a value from outside."""
    value = helper.make_tensor_value_info
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)

    def branch(operator: str) -> onnx.GraphProto:
        node = helper.make_node(operator, ["r"], [f"inner_{operator}"])
        return helper.make_graph(
            [node], operator, [], [value(f"inner_{operator}", TensorProto.FLOAT, [2, 8])]
        )

    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w"], ["g"], name="first"),
            helper.make_node("Relu", ["g"], ["r"]),
            helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
            helper.make_node("Greater", ["s", "zero"], ["c"]),
            helper.make_node(
                "If", ["c"], ["y"], then_branch=branch("Exp"), else_branch=branch("Neg")
            ),
        ],
        "g",
        [value("x", TensorProto.FLOAT, [2, 8])],
        [value("y", TensorProto.FLOAT, [2, 8]), value("r", TensorProto.FLOAT, [2, 8])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.float32(0.0), "zero")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 10
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_a_labelled_model_computes_the_same(path: Path, tmp_path: Path) -> None:
    """Names change in branches too, which read values of the graph around them."""
    labelled = tmp_path / "labelled.onnx"
    write_labelled(str(path), labelled)
    inputs = {"x": np.random.default_rng(1).random((2, 8), np.float32)}

    expected = run(path.read_bytes(), inputs)
    actual = run(labelled.read_bytes(), inputs)

    for one, other in zip(expected, actual, strict=True):
        np.testing.assert_array_equal(one, other)


def test_nodes_keep_the_names_that_users_know(path: Path) -> None:
    """A node without a name is called after its output; a branch's needs count."""
    nodes = nodes_of(read_graph(str(path)))

    assert [node.name for node in nodes] == ["first", "r", "s", "c", "y"]
    assert nodes[4].inputs == ("c", "r")


def test_origins_are_found_in_any_name() -> None:
    """Runtimes decorate names."""
    assert origins_in("fused tuner_node_12_", "tuner_node_3_0_nchwc,other") == (3, 12)
    assert origins_in("reorder") == ()


@pytest.mark.parametrize("peer", [onnxruntime, openvino], ids=["onnxruntime", "openvino"])
def test_a_peer_tells_which_nodes_it_fused(path: Path, tmp_path: Path, peer: object) -> None:
    """Gemm and Relu are one node of either runtime, or two, but none is lost."""
    arrays = tmp_path / "inputs.npz"
    write_arrays(arrays, {"x": np.ones((2, 8), np.float32)})
    model = PeerModel(str(path), _INPUTS, {}, 1, "cpu")

    nodes = peer.profile_model(model, NetworkRun("", str(arrays), "", 2))  # type: ignore[attr-defined]

    assert {0, 1} <= {number for node in nodes for number in node.origins}
    assert all(node.secs > 0.0 for node in nodes if node.origins == (0, 1))
