"""``bench`` lets float64 decide between a library and a peer that differ."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tuner
from tuner.compile.bench.bench_runtimes import Float64Runs
from tuner.devices.locks import device_lock

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]


def test_a_small_probability_that_float64_confirms_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime's sigmoid of -13.5 is off by some hundredths; a single element has no spread.

    Others may measure at the same time; an output that the file names twice is one of the library.
    """
    run = Float64Runs._run

    def run_beside(self: Float64Runs, seed: int) -> bool:
        with device_lock(data):
            return run(self, seed)

    monkeypatch.setattr(Float64Runs, "_run", run_beside)
    model, data = tmp_path / "model.onnx", tmp_path / "data"
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["z"]),
            helper.make_node("Sigmoid", ["z"], ["s"]),
            helper.make_node("Mul", ["s", "share"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 1))] * 2,
        [
            numpy_helper.from_array(np.full((8, 1), -13.5 / 8, np.float32), "w"),
            numpy_helper.from_array(np.array([0.75], np.float32), "share"),
        ],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), model
    )
    tuner.build(str(model), tmp_path / "lib", data_dir=data)

    comparison = tuner.evaluate(
        tmp_path / "lib",
        model=str(model),
        against="onnxruntime",
        arrays={"x": np.ones((1, 8), np.float32)},
        n_turns=1,
        data_dir=data,
    )

    (check,) = comparison.peer("onnxruntime").outputs
    assert check.n_near_ties == 1
    assert comparison.agrees
