"""Nodes that replace one node of an ONNX graph."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tuner.errors import ModelError
from tuner.networks.onnx.graph import Array, attribute, constant_readers, fixed_shapes

# Elements of the constants that replacements add to a model: 128 MB of float32.
_MAX_ELEMENTS = 1 << 25


class NodeBuilder:
    """Nodes that replace one node.

    Attributes:
        nodes: Its replacement.
        prefix: Text before the names of new values.
    """

    def __init__(self, node: onnx.NodeProto, graph: onnx.GraphProto) -> None:
        self.node = node
        self.prefix = node.output[0]
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
        output = output or f"{self.prefix}_{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def constant(self, array: Array) -> str:
        """Return the name of a new constant."""
        name = f"{self.prefix}_constant_{len(self._graph.initializer)}"
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


@dataclass
class Tables:
    """Constants that all replacements add to a model."""

    n_elements: int = 0


class Replacement(NodeBuilder):
    """Nodes that replace one node of a graph whose values are known."""

    def __init__(
        self, node: onnx.NodeProto, graph: onnx.GraphProto, values: Values, tables: Tables
    ) -> None:
        super().__init__(node, graph)
        self.opset = values.opset
        self._values = values
        self._tables = tables

    def check_table(self, *shape: int) -> None:
        """Check that a model may have one more constant, before it is computed.

        Raises:
            ModelError: If the constants of all replacements would be too large.
        """
        n_elements = self._tables.n_elements + prod(map(int, shape))
        if n_elements > _MAX_ELEMENTS:
            raise ModelError(
                f"a {self.node.op_type} would bring the tables that operators are rewritten with "
                f"to {n_elements} elements, and a model may have {_MAX_ELEMENTS}: use smaller "
                "inputs or kernels, or export the model in parts",
                code="too-large",
            )

    def constant(self, array: Array) -> str:
        """Return the name of a new constant.

        Raises:
            ModelError: If the constants of all replacements would be too large.
        """
        self.check_table(*array.shape)
        self._tables.n_elements += array.size
        return super().constant(array)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value.

        Raises:
            UnknownValueError: If it is unknown.
        """
        if name not in self._values.shapes:
            raise UnknownValueError
        return self._values.shapes[name]

    def dtype(self, *names: str) -> np.dtype[Any]:
        """Return the type of the elements of the first of some values whose type is known.

        Raises:
            UnknownValueError: If that of none is.
        """
        for name in names:
            if name in self._values.dtypes:
                return self._values.dtypes[name]
        raise UnknownValueError

    def as_float(self, value: str, dtype: np.dtype[Any]) -> str:
        """Return a value of this type as float32 if the type is narrower."""
        return self.add("Cast", value, to=onnx.TensorProto.FLOAT) if dtype.itemsize < 4 else value

    def from_float(self, value: str, dtype: np.dtype[Any], output: str) -> str:
        """Append the conversion back from :meth:`as_float`."""
        if dtype.itemsize < 4:
            kind = helper.np_dtype_to_tensor_dtype(dtype)
            return self.add("Cast", value, to=kind, output=output)
        return self.add("Identity", value, output=output)

    def array(self, index: int) -> Array | None:
        """Return an input that must be constant; None if it is left out.

        Raises:
            UnknownValueError: If the network computes it.
        """
        name = self.input(index)
        if name and name not in self._values.constants:
            raise UnknownValueError
        return self._values.constants[name]() if name else None

    def number(self, value: float) -> str:
        """Return the name of a new constant, a float32 without axes."""
        return self.constant(np.array(value, np.float32))

    def numbers(self, name: str) -> Array:
        """Return an attribute of numbers as float32; empty if it is missing."""
        return np.array(self.attribute(name, []), np.float32)

    def reshape(self, value: str, *shape: int, output: str = "") -> str:
        """Append a Reshape; return the name of its output."""
        return self.add("Reshape", value, self.constant(np.array(shape)), output=output)

    def unsqueeze(self, value: str, axis: int) -> str:
        """Append an axis of length 1; return its output's name."""
        if self.opset < 13:
            return self.add("Unsqueeze", value, axes=[axis])
        return self.add("Unsqueeze", value, self.constant(np.array([axis])))

    def reduce(self, op: str, value: str, *axes: int) -> str:
        """Append a reduction of axes, which stay with length 1; return its output's name."""
        if self.opset < (13 if op == "ReduceSum" else 18):
            return self.add(op, value, axes=axes, keepdims=1)
        return self.add(op, value, self.constant(np.array(axes)), keepdims=1)


def since(opset: int, replace: Callable[[Replacement], None]) -> Callable[[Replacement], None]:
    """Return a replacement for models of a version of the standard's operators, or a later one."""

    def replace_since(b: Replacement) -> None:
        if b.opset < opset:
            raise UnknownValueError
        replace(b)

    return replace_since


class UnknownValueError(Exception):
    """A node cannot be replaced because a shape or a constant is unknown."""


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of the standard's operators that a model uses."""
    return max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)
