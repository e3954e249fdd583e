"""Sums of products of bytes by ONNX Runtime, which saturates them on CPUs without VNNI."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tuner.networks.models import Array
from tuner.engines.base import NetworkRun
from tuner.library.arrays import read_arrays, write_arrays
from tuner.peers import onnxruntime
from tuner.peers.base import PeerModel
from tuner.peers.exact import exact_sums

_DATA = np.full((3, 16), 255, np.uint8)
_WEIGHT = np.where(np.arange(16 * 4).reshape(16, 4) % 8 < 4, 127, -128).astype(np.int8)
_WEIGHT[:, 0] = 127
_SUMS = _DATA.astype(np.int64) @ _WEIGHT.astype(np.int64)
_STEP = np.array(2.0**-14, np.float32)


def quantised_model(nodes: list[onnx.NodeProto], data: Array, weights: Mapping[str, Any]) -> bytes:
    """Make a model from ``data`` to ``y``; its weights are arrays by name."""
    graph = helper.make_graph(
        nodes,
        "test",
        [
            helper.make_tensor_value_info(
                "data", helper.np_dtype_to_tensor_dtype(data.dtype), data.shape
            )
        ],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def products() -> dict[str, tuple[bytes, Array]]:
    """Return models of the largest sums in each form, and what they compute."""
    codes = np.clip(np.rint(_SUMS * float(_STEP)) + 128, 0, 255).astype(np.uint8)
    scales = np.full(4, 1.0, np.float32)
    linear = ["data", "one", "zero", "w", "one", "signed", "t", "middle"]
    linear_weights: dict[str, Any] = {
        **{"w": _WEIGHT, "one": np.float32(1.0), "zero": np.uint8(0), "signed": np.int8(0)},
        **{"t": 1 / _STEP, "middle": np.uint8(128)},
    }
    node = helper.make_node
    return {
        "MatMulInteger": (
            quantised_model([node("MatMulInteger", ["data", "w"], ["y"])], _DATA, {"w": _WEIGHT}),
            _SUMS.astype(np.int32),
        ),
        "QLinearMatMul": (
            quantised_model([node("QLinearMatMul", linear, ["y"])], _DATA, linear_weights),
            codes,
        ),
        "QDQ": (
            quantised_model(
                [
                    node("DequantizeLinear", ["data", "one", "zero"], ["d"]),
                    node("DequantizeLinear", ["w", "scales"], ["v"], axis=1),
                    node("MatMul", ["d", "v"], ["m"]),
                    node("QuantizeLinear", ["m", "t", "middle"], ["y"]),
                ],
                _DATA,
                {**linear_weights, "scales": scales},
            ),
            codes,
        ),
    }


def outputs_of(model: bytes, data: Array, folder: Path) -> Array:
    """Run a model with ONNX Runtime as a peer."""
    path = folder / "model.onnx"
    path.write_bytes(model)
    inputs, outputs = str(folder / "inputs.npz"), str(folder / "outputs.npz")
    write_arrays(inputs, {"data": data})
    peer = PeerModel(str(path), {"data": (data.shape, str(data.dtype))}, {}, 1, "cpu")
    onnxruntime.run_model(peer, NetworkRun("", inputs, outputs, 0))
    (array,) = read_arrays(outputs).values()
    info = onnxruntime.load_model(peer)
    assert bool(info.note) == (exact_sums.saturates() and data.dtype == np.uint8)
    return array


@pytest.mark.parametrize("form", ["MatMulInteger", "QLinearMatMul", "QDQ"])
def test_outputs_of_the_peer_are_exact(form: str, tmp_path: Path) -> None:
    """Sums of the largest bytes are those of integers on any CPU, and users are told."""
    model, expected = products()[form]

    np.testing.assert_array_equal(outputs_of(model, _DATA, tmp_path), expected)


def test_products_of_signed_data_stay(tmp_path: Path) -> None:
    """ONNX Runtime has no products of int8 and uint8, and those of int8 and int8 are exact."""
    data, zero = np.full((3, 16), -128, np.int8), np.int8(0)
    nodes = [
        helper.make_node("QLinearMatMul", ["data", "a", "z", "w", "a", "z", "t", "z"], ["y"]),
    ]
    weights = {"w": _WEIGHT, "a": np.float32(1.0), "z": zero, "t": 1 / _STEP}
    sums = data.astype(np.int64) @ _WEIGHT.astype(np.int64)

    outputs = outputs_of(quantised_model(nodes, data, weights), data, tmp_path)

    expected = np.clip(np.rint(sums * float(_STEP)), -128, 127).astype(np.int8)
    np.testing.assert_array_equal(outputs, expected)


def test_weights_are_moved_with_their_zero_points() -> None:
    """Every weight of int8 is one of uint8, and a weight that two products share is moved once."""
    model = onnx.load_from_string(products()["QDQ"][0])
    model.graph.node.add().CopyFrom(
        helper.make_node("DequantizeLinear", ["w", "scales"], ["again"], axis=1)
    )

    assert exact_sums.move_weights(model)

    by_name = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = [each for each in model.graph.node if "scales" in each.input]
    assert len({each.input[0] for each in nodes}) == 1
    weight, zero = (numpy_helper.to_array(by_name[name]) for name in nodes[0].input[::2])
    assert by_name[nodes[0].input[0]].data_type == TensorProto.UINT8
    np.testing.assert_array_equal(weight.astype(int) - zero, _WEIGHT)


def test_a_model_without_such_weights_is_not_written(tmp_path: Path) -> None:
    """Its own sums are exact."""
    node = helper.make_node("MatMulInteger", ["data", "w"], ["y"])
    path = tmp_path / "model.onnx"
    path.write_bytes(quantised_model([node], _DATA, {"w": _WEIGHT.astype(np.uint8)}))

    assert not exact_sums.write_exact(str(path), tmp_path / "exact.onnx")
    assert not (tmp_path / "exact.onnx").exists()
