"""First choices on GPUs are counted, of networks that are cast to float16."""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.gpu import first_choices
from tests.gpu_compilers import needs_triton

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]


def test_a_network_becomes_float16_but_for_scales() -> None:
    """Inputs, weights, constants, casts and large numbers; ONNX defines scales as float32."""
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    nodes = [
        helper.make_node("Cast", ["i"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("Constant", [], ["c"], value_float=2.0),
        helper.make_node("Mul", ["x", "c"], ["m"]),
        helper.make_node("Add", ["m", "w"], ["s"]),
        helper.make_node("Resize", ["s", "", "scales"], ["y"]),
    ]
    weight = numpy_helper.from_array(np.full((1, 1, 2, 2), -3e38, np.float32), "w")
    shapes = [("i", TensorProto.INT64, 2), ("y", TensorProto.FLOAT, 4)]
    given, output = (
        helper.make_tensor_value_info(name, kind, (1, 1, size, size)) for name, kind, size in shapes
    )
    graph = helper.make_graph(nodes, "g", [given], [output], [scales, weight])

    half = first_choices.as_half(helper.make_model(graph, ir_version=10))

    onnx.checker.check_model(half, full_check=True)
    types = {each.name: each.data_type for each in half.graph.initializer}
    assert types == {"scales": TensorProto.FLOAT, "w": TensorProto.FLOAT16}
    assert numpy_helper.to_array(half.graph.initializer[1]).max() == -65504


@needs_triton
def test_kernels_of_a_network_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An MLP has one row: its products read their weights at the bandwidth of the memory."""
    words = ["--only", "zoo-mlp", "--data-dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["first_choices", *words])

    first_choices.main()

    network, total = map(json.loads, capsys.readouterr().out.splitlines())
    assert total["networks"] == 1
    assert network["products"] == total["products"] == 3
    assert total["spills"] == total["misses"] == total["on_tensor_cores"] == 0
    assert {each["reason"] for each in network["kernels"]} == {"one row: weights are read once"}
