"""ONNX models in float16 for tests of kernels."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.tuner.engines.relax.conftest import Array, draw
from tuner.engines.base import ModelFile
from tuner.networks.worker import load_model


class HalfModel:
    """A model that grows by one operator after the other."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._constants: list[onnx.TensorProto] = []

    def input(self, *shape: int, kind: int = TensorProto.FLOAT16) -> str:
        """Add an input, and return its name."""
        name = f"x{len(self._inputs)}"
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def constant(self, array: Array | onnx.TensorProto) -> str:
        """Add a constant, and return its name."""
        tensor = onnx.TensorProto()
        tensor.CopyFrom(numpy_helper.from_array(array) if isinstance(array, np.ndarray) else array)
        tensor.name = f"w{len(self._constants)}"
        self._constants.append(tensor)
        return str(tensor.name)

    def weight(self, *shape: int) -> str:
        """Add a constant around zero, and return its name."""
        drawn = draw(*shape, seed=len(self._constants)) / 4
        return self.constant(drawn.astype(np.float16))

    def add(self, op: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        """Add an operator, and return the name of its output."""
        output = f"v{len(self._nodes)}"
        node = helper.make_node(op, inputs, [output], domain=domain, **attributes)
        self._nodes.append(node)
        return output

    def load(self, folder: Path, *outputs: str, shape: tuple[int, ...] | None = None) -> ModelFile:
        """Clean the model; onnx infers the shape of its outputs unless one is given."""
        graph = helper.make_graph(
            self._nodes,
            "half",
            self._inputs,
            [helper.make_tensor_value_info(each, TensorProto.FLOAT16, shape) for each in outputs],
            self._constants,
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        path = folder / "half.onnx"
        onnx.save(onnx.shape_inference.infer_shapes(model), path)
        return load_model(str(path), {}, None, str(folder)).file
