"""A library for buckets computes what ONNX Runtime computes without padding, at any size."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tuner
from tests.tuner.networks.models import model, run
from tests.tuner.networks.onnx.folding.test_fixed_values import rated


def attention_model() -> onnx.ModelProto:
    """Return masked self-attention over tokens, with a dynamic batch and length."""
    rng = np.random.default_rng(0)
    weights = {
        "table": rng.standard_normal((50, 8)).astype(np.float32),
        "query": rng.standard_normal((8, 8)).astype(np.float32),
        "one": np.array(1, np.float32),
        "far": np.array(-1e9, np.float32),
        "axis": np.array([1]),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("MatMul", ["e", "query"], ["q"]),
        helper.make_node("Transpose", ["e"], ["k"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Cast", ["mask"], ["m"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "m"], ["hidden"]),
        helper.make_node("Mul", ["hidden", "far"], ["shift"]),
        helper.make_node("Unsqueeze", ["shift", "axis"], ["shifts"]),
        helper.make_node("Add", ["scores", "shifts"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["p"]),
        helper.make_node("MatMul", ["p", "e"], ["y"]),
    ]
    inputs = dict.fromkeys(("ids", "mask"), ("batch", "length"))
    kinds = dict.fromkeys(inputs, TensorProto.INT64)
    return model(nodes, inputs, {"y": ("batch", "length", 8)}, weights, kinds=kinds)


@pytest.mark.slow("compiles four programs for half a minute")
def test_every_size_agrees_with_the_model(tmp_path: Path) -> None:
    """Sizes between buckets are padded in both dimensions, and outputs are cut."""
    made = attention_model()
    onnx.save(made, tmp_path / "attention.onnx")
    buckets = {"batch": [1, 2], "length": [4, 8]}
    tuner.build(tmp_path / "attention.onnx", tmp_path / "lib", buckets=buckets, data_dir=tmp_path)
    network = tuner.load(tmp_path / "lib")
    rng = np.random.default_rng(1)

    for batch, length in ((1, 3), (1, 4), (2, 5), (2, 8), (1, 8)):
        ids = rng.integers(0, 50, (batch, length))
        mask = np.ones((batch, length), np.int64)
        mask[0, 1] = 0
        feeds = {"ids": ids, "mask": mask}
        (expected,) = run(made.SerializeToString(), feeds)
        np.testing.assert_allclose(network(feeds)["y"], expected, rtol=1e-4, atol=1e-5)

    with pytest.raises(ValueError, match="'length' is 9"):
        network(ids=np.zeros((1, 9), np.int64), mask=np.ones((1, 9), np.int64))


@pytest.mark.parametrize(
    "rate", [pytest.param(16, marks=pytest.mark.slow("builds another library of the same")), 8]
)
def test_a_fixed_value_holds_where_padding_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: int
) -> None:
    """The outputs are those of the branch that the value chooses, cut where it has a length."""
    monkeypatch.setenv("TUNER_N_BUILDERS", "1")
    made = rated(())
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(made, tmp_path / "rated.onnx")
    tuner.build(
        tmp_path / "rated.onnx",
        tmp_path / "lib",
        inputs={"rate": (rate,)},
        buckets={"n": [2, 4]},
        data_dir=tmp_path,
    )
    data = np.array([3, 1, 2], np.float32)

    network = tuner.load(tmp_path / "lib")

    if rate == 16:
        np.testing.assert_array_equal(network(data=data)["y"], 2 * data)
    else:  # zeros behind the data could be the largest
        with pytest.raises(ValueError, match="3"):
            network(data=data)
