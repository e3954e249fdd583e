"""Construction of ONNX graphs layer by layer, with the number of channels of each value."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

_OPSET = 17
_IR_VERSION = 8


@dataclass(frozen=True)
class Value:
    """Name of a tensor in the graph, and its length along axis 1."""

    name: str
    n_channels: int


@dataclass
class GraphBuilder:
    """Nodes and weights of a graph; weights are zeros until ``randomise_weights`` fills them.

    Attributes:
        dtype: Type of the input, the output and every weight: ``float32`` or ``float16``.
        n_spatial: 2 for images, 3 for videos; a single number for a kernel or stride applies to
            every spatial axis.
    """

    dtype: str
    n_spatial: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add an operator with one output; return the output's name."""
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def weight(self, *shape: int) -> str:
        """Add a tensor of zeros; return its name."""
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.zeros(shape, self.dtype), name))
        return name

    def conv(
        self,
        x: Value,
        n_channels: int,
        kernel: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        pad: int | tuple[int, ...] = 0,
        **options: Any,
    ) -> Value:
        """Add a convolution; ``group`` and ``bias`` (a bool, False) are its options."""
        group = options.get("group", 1)
        kernel_shape = self._sizes(kernel)
        weights = [self.weight(n_channels, x.n_channels // group, *kernel_shape)]
        if options.get("bias"):
            weights.append(self.weight(n_channels))
        name = self.node(
            "Conv",
            x.name,
            *weights,
            kernel_shape=kernel_shape,
            strides=self._sizes(stride),
            pads=self._sizes(pad) * 2,
            group=group,
        )
        return Value(name, n_channels)

    def batch_norm(self, x: Value, epsilon: float = 2e-5) -> Value:
        """Add an inference batch norm; relay.testing's epsilon is 2e-5 except in MobileNet."""
        weights = [self.weight(x.n_channels) for _ in range(4)]
        name = self.node("BatchNormalization", x.name, *weights, epsilon=epsilon)
        return Value(name, x.n_channels)

    def relu(self, x: Value) -> Value:
        """Add a ReLU."""
        return Value(self.node("Relu", x.name), x.n_channels)

    def max_pool(self, x: Value, kernel: int, stride: int, pad: int = 0) -> Value:
        """Add a max pooling; sizes are rounded down."""
        name = self.node("MaxPool", x.name, **self._window(kernel, stride, pad))
        return Value(name, x.n_channels)

    def average_pool(self, x: Value, kernel: int, stride: int, pad: int = 0) -> Value:
        """Add an average pooling that counts the padding."""
        window = self._window(kernel, stride, pad)
        name = self.node("AveragePool", x.name, count_include_pad=1, **window)
        return Value(name, x.n_channels)

    def global_pool(self, x: Value) -> Value:
        """Average over all positions; the result is a matrix (batch, channels)."""
        return self.flatten(Value(self.node("GlobalAveragePool", x.name), x.n_channels))

    def flatten(self, x: Value) -> Value:
        """Reshape to a matrix (batch, channels); other axes must have length 1."""
        return Value(self.node("Flatten", x.name, axis=1), x.n_channels)

    def dense(self, x: Value, n_units: int) -> Value:
        """Add a dense layer with bias."""
        weights = [self.weight(n_units, x.n_channels), self.weight(n_units)]
        return Value(self.node("Gemm", x.name, *weights, transB=1), n_units)

    def add(self, a: Value, b: Value) -> Value:
        """Add two values of the same shape."""
        return Value(self.node("Add", a.name, b.name), a.n_channels)

    def concat(self, *values: Value) -> Value:
        """Join values along the channels."""
        name = self.node("Concat", *(value.name for value in values), axis=1)
        return Value(name, sum(value.n_channels for value in values))

    def dropout(self, x: Value) -> Value:
        """Add a dropout, which has no effect at inference."""
        return Value(self.node("Dropout", x.name), x.n_channels)

    def to_channels_first(self, name: str, n_channels: int) -> Value:
        """Move the channels from the last axis to axis 1, where ONNX expects them."""
        axes = range(self.n_spatial + 2)
        perm = [0, axes[-1], *axes[1:-1]]
        return Value(self.node("Transpose", name, perm=perm), n_channels)

    def model(self, input_shape: tuple[int, ...], logits: Value) -> onnx.ModelProto:
        """Return the model with a final softmax, the input ``data`` and the output ``output``."""
        softmax = helper.make_node("Softmax", [logits.name], ["output"], name="softmax", axis=-1)
        code = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        output_shape = (input_shape[0], logits.n_channels)
        graph = helper.make_graph(
            [*self.nodes, softmax],
            "network",
            [helper.make_tensor_value_info("data", code, input_shape)],
            [helper.make_tensor_value_info("output", code, output_shape)],
            self.weights,
        )
        opset = [helper.make_opsetid("", _OPSET)]
        return helper.make_model(graph, opset_imports=opset, ir_version=_IR_VERSION)

    def _sizes(self, size: int | tuple[int, ...]) -> list[int]:
        return [size] * self.n_spatial if isinstance(size, int) else list(size)

    def _window(self, kernel: int, stride: int, pad: int) -> dict[str, list[int]]:
        sizes = [self._sizes(size) for size in (kernel, stride, pad)]
        return {"kernel_shape": sizes[0], "strides": sizes[1], "pads": sizes[2] * 2}
