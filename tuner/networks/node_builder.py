"""Nodes that replace one node of an ONNX graph."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tuner.networks.graph import Array, attribute, constant_readers, fixed_shapes


class NodeBuilder:
    """Nodes that replace one node.

    Attributes:
        node: The node.
        nodes: Its replacement.
    """

    def __init__(self, node: onnx.NodeProto, graph: onnx.GraphProto) -> None:
        self.node = node
        self.nodes: list[onnx.NodeProto] = []
        self._graph = graph

    def input(self, index: int) -> str:
        """Return the name of an input; empty if it is left out."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the node."""
        return attribute(self.node, name, default)

    def add(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Append a node; return the name of its output."""
        output = output or f"{self.node.output[0]}_{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def constant(self, array: Array) -> str:
        """Return the name of a new constant."""
        name = f"{self.node.output[0]}_constant_{len(self._graph.initializer)}"
        self._graph.initializer.append(numpy_helper.from_array(array, name))
        return name


@dataclass(frozen=True)
class Values:
    """Knowledge about the values of a graph.

    Attributes:
        opset: Version of the standard's operators.
        shapes: Fixed shapes by name.
        dtypes: Types of the elements by name.
        constants: Functions that read constants, by name.
    """

    opset: int
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, np.dtype[Any]]
    constants: Mapping[str, Callable[[], Array]]

    @classmethod
    def of(cls, model: onnx.ModelProto) -> "Values":
        """Return what a model with ``value_info`` says about its values."""
        graph = model.graph
        kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
        for info in (*graph.value_info, *graph.input, *graph.output):
            kinds[info.name] = info.type.tensor_type.elem_type
        return cls(
            opset_of(model),
            fixed_shapes(graph),
            {name: helper.tensor_dtype_to_np_dtype(kind) for name, kind in kinds.items() if kind},
            constant_readers(graph),
        )


class Replacement(NodeBuilder):
    """Nodes that replace one node of a graph whose values are known."""

    def __init__(self, node: onnx.NodeProto, graph: onnx.GraphProto, values: Values) -> None:
        super().__init__(node, graph)
        self.opset = values.opset
        self._values = values

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value.

        Raises:
            UnknownValueError: If it is unknown.
        """
        if name not in self._values.shapes:
            raise UnknownValueError
        return self._values.shapes[name]

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the type of the elements of a value.

        Raises:
            UnknownValueError: If it is unknown.
        """
        if name not in self._values.dtypes:
            raise UnknownValueError
        return self._values.dtypes[name]

    def array(self, index: int) -> Array | None:
        """Return an input that must be constant; None if it is left out.

        Raises:
            UnknownValueError: If the network computes it.
        """
        name = self.input(index)
        if name and name not in self._values.constants:
            raise UnknownValueError
        return self._values.constants[name]() if name else None

    def reshape(self, value: str, *shape: int, output: str = "") -> str:
        """Append a Reshape; return the name of its output."""
        return self.add("Reshape", value, self.constant(np.array(shape)), output=output)

    def reduce(self, op: str, value: str, axis: int) -> str:
        """Append a reduction of an axis, which stays with length 1; return its output's name."""
        if self.opset < (13 if op == "ReduceSum" else 18):
            return self.add(op, value, axes=[axis], keepdims=1)
        return self.add(op, value, self.constant(np.array([axis])), keepdims=1)


class UnknownValueError(Exception):
    """A node cannot be replaced because a shape or a constant is unknown."""


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of the standard's operators that a model uses."""
    return max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)
