"""Small models and helpers for several test modules."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
#: Shape of an input or output, or an array that has it.
Spec = Sequence[int | str] | Array | None

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
QUICK = ("squeezenet", "shufflenet")
SLOW = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "vgg19",
    "zfnet512",
)


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
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Spec],
    outputs: Mapping[str, Spec],
    weights: Mapping[str, Any] = MappingProxyType({}),
    *,
    opset: int | Mapping[str, int] = 17,
    kinds: Mapping[str, int] = MappingProxyType({}),
) -> onnx.ModelProto:
    """Make a model.

    Args:
        nodes: Its operators.
        inputs: Shapes by name; an array stands for its shape and dtype.
        outputs: Shapes by name; None if the shape is unknown.
        weights: Constants by name.
        opset: Version of the standard, or of each domain.
        kinds: Element types of inputs and outputs that are not of float32.
    """

    def infos(specs: Mapping[str, Spec]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(spec.dtype), spec.shape
            )
            if isinstance(spec, np.ndarray)
            else helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), spec)
            for name, spec in specs.items()
        ]

    tensors = [numpy_helper.from_array(np.asarray(each), name) for name, each in weights.items()]
    graph = helper.make_graph(nodes, "test", infos(inputs), infos(outputs), tensors)
    versions = {"": opset, "com.acme": 1} if isinstance(opset, int) else opset
    opsets = [helper.make_opsetid(*each) for each in versions.items()]
    ir_version = 8 if versions[""] < 18 else 11
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def relu_model(*shape: int | str) -> onnx.ModelProto:
    """Make a model of one Relu from ``data`` to ``y``."""
    return model([helper.make_node("Relu", ["data"], ["y"])], {"data": shape}, {"y": shape})
