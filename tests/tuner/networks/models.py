"""Small models and helpers for several test modules."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
QUICK = ("squeezenet", "shufflenet", "inception_v2")
SLOW = ("bvlc_alexnet", "densenet121", "inception_v1", "resnet50", "vgg19", "zfnet512")


def run(model: bytes, feeds: dict[str, Array]) -> list[Array]:
    """Run a serialised model under ONNX Runtime on one thread."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    outputs: list[Array] = session.run(None, feeds)
    return outputs


def difference(actual: Array, expected: Array) -> float:
    """Return the largest difference, relative to the largest expected value."""
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int | str, ...]],
    outputs: dict[str, tuple[int | str, ...]],
    weights: dict[str, Array] | None = None,
) -> onnx.ModelProto:
    """Make a float32 model of opset 17."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in inputs.items()],
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def relu_model(*shape: int | str) -> onnx.ModelProto:
    """Make a model of one Relu from ``data`` to ``y``."""
    return model([helper.make_node("Relu", ["data"], ["y"])], {"data": shape}, {"y": shape})
