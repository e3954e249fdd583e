"""Random weights for models without their own, scaled so that activations stay near 1.

The models that the onnx package ships have ConstantOfShape(0.02) instead of every large weight:
each output is then 0.001 for any input, and a comparison of outputs proves nothing.
"""

import math
import zlib
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from tuner.networks.onnx.foreign import is_foreign
from tuner.networks.onnx.graph import Array, attribute, constant_readers

#: Inputs that hold weights, and their roles. "variance" takes precedence over the others, because
#: a constant shared with it must stay positive.
_ROLES = {
    "Conv": {1: "weight", 2: "shift"},
    "ConvTranspose": {1: "weight", 2: "shift"},
    "Gemm": {0: "weight", 1: "weight", 2: "shift"},
    "MatMul": {0: "weight", 1: "weight"},
    "BatchNormalization": {1: "scale", 2: "shift", 3: "mean", 4: "variance"},
}
#: The same for placeholders and constants with one number per channel.
_CHANNEL_ROLES = {
    "Mul": {0: "scale", 1: "scale"},
    "Add": {0: "shift", 1: "shift"},
    "Sum": {0: "shift", 1: "shift"},
}
_VIEWS = {"Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Cast", "Transpose"}
_MIN_WEIGHT_SIZE = 64


class _Placeholder(NamedTuple):
    """A constant with a single repeated value, represented by its shape."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


class _Stats(NamedTuple):
    """Estimated mean and variance over all elements of an activation."""

    mean: float = 0.0
    variance: float = 1.0

    @property
    def mean_square(self) -> float:
        """Mean square of the elements, to which the variance of a weighted sum is proportional."""
        return self.mean**2 + self.variance


class _Use(NamedTuple):
    """A node that reads a constant, and the role of the constant there."""

    node: onnx.NodeProto
    role: str


@dataclass
class _Weights:
    """The constants of a model that are weights, according to the nodes that read them."""

    model: onnx.ModelProto
    uses: dict[str, _Use] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.model.graph
        self.readers = constant_readers(graph)
        placeholders = {}
        for node in graph.node:
            if node.op_type == "ConstantOfShape" and node.input[0] in self.readers:
                value = attribute(node, "value")
                dtype = numpy_helper.to_array(value).dtype if value else np.dtype(np.float32)
                shape = tuple(int(size) for size in self.readers[node.input[0]]())
                if dtype.kind == "f":
                    placeholders[node.output[0]] = _Placeholder(shape, dtype)
        self.placeholders = placeholders
        origin = {name: name for name in (*self.readers, *self.placeholders)}
        for node in graph.node:
            if node.op_type in _VIEWS and node.input and node.input[0] in origin:
                origin[node.output[0]] = origin[node.input[0]]
            for index, role in self._roles(node).items():
                name = origin.get(node.input[index], "") if index < len(node.input) else ""
                if not name or (node.op_type in _CHANNEL_ROLES and not self._is_vector(name)):
                    continue
                if name not in self.uses or role == "variance":
                    self.uses[name] = _Use(node, role)
        self.origin = origin

    def _roles(self, node: onnx.NodeProto) -> dict[int, str]:
        if is_foreign(node):
            return {}
        return _ROLES.get(node.op_type) or _CHANNEL_ROLES.get(node.op_type) or {}

    def _is_vector(self, name: str) -> bool:
        shape = self.shape(name)
        return name in self.placeholders or 1 < math.prod(shape) == max(shape)

    def shape(self, name: str) -> tuple[int, ...]:
        placeholder = self.placeholders.get(name)
        return placeholder.shape if placeholder else self.readers[name]().shape

    def dtype(self, name: str) -> np.dtype[np.generic]:
        placeholder = self.placeholders.get(name)
        return placeholder.dtype if placeholder else self.readers[name]().dtype

    def is_constant(self, name: str) -> bool:
        """Return whether all elements are equal; a few are compared first, for speed."""
        if name in self.placeholders:
            return True
        array = self.readers[name]().reshape(-1)
        return bool((array[:64] == array[0]).all() and (array == array[0]).all())


def is_degenerate(model: onnx.ModelProto) -> bool:
    """Return whether most of a model's weights, by number of elements, are constant tensors."""
    weights = _Weights(model)
    n_elements = {
        name: math.prod(weights.shape(name))
        for name, use in weights.uses.items()
        if use.role == "weight" and math.prod(weights.shape(name)) >= _MIN_WEIGHT_SIZE
    }
    n_constant = sum(n for name, n in n_elements.items() if weights.is_constant(name))
    return 2 * n_constant > sum(n_elements.values())


def randomise_weights(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return a copy of a model with new weights, biases and batch norm statistics.

    The weights of Conv, ConvTranspose, Gemm, MatMul and BatchNormalization are replaced, and
    the constants per channel of Mul, Add and Sum. The mean square of every activation is
    estimated, and each weight drawn with the variance 1 / (fan-in * mean square), which is He's
    rule (ICCV'15) after a Relu and also keeps residual sums from growing.

    Args:
        model: Model, which is not changed; operators inside If, Loop and Scan keep their weights.
        seed: Seed, at least 0; together with the name of a weight it determines its values.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    weights = _Weights(result)
    arrays = _draw_all(weights, seed)
    _replace(result, arrays)
    return result


def _draw_all(weights: _Weights, seed: int) -> dict[str, Array]:
    """Draw every weight, following the statistics of activations through the graph."""
    stats: dict[str, _Stats] = {}
    arrays: dict[str, Array] = {}
    for node in weights.model.graph.node:
        data = [name for name in node.input if name and name not in weights.origin]
        incoming = [stats.get(name, _Stats()) for name in data]
        for source in node.input:
            name = weights.origin.get(source, "")
            use = weights.uses.get(name)
            if use is None or use.node.output[0] != node.output[0] or name in arrays:
                continue
            if weights.dtype(name).kind == "f":
                rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
                drawn = _draw(use, weights.shape(name), incoming[0] if incoming else _Stats(), rng)
                arrays[name] = drawn.astype(weights.dtype(name))
        for output in node.output:
            stats[output] = _propagate(node, incoming)
    return arrays


def _draw(use: _Use, shape: tuple[int, ...], data: _Stats, rng: np.random.Generator) -> Array:
    """Draw one constant, given the statistics of the node's input."""
    if use.role == "weight":
        values = rng.standard_normal(shape, dtype=np.float32)
        values *= np.float32(1.0 / math.sqrt(_fan_in(use.node, shape) * data.mean_square))
        return values
    if use.role == "scale":
        return rng.uniform(0.8, 1.2, shape)
    if use.role == "variance":
        return data.variance * rng.uniform(0.8, 1.2, shape)
    if use.role == "mean":
        return data.mean + math.sqrt(data.variance) * rng.normal(0.0, 0.1, shape)
    return rng.normal(0.0, 0.1, shape)


def _fan_in(node: onnx.NodeProto, shape: tuple[int, ...]) -> int:
    """Return the number of products in the sum of one output element."""
    n_elements = math.prod(shape)
    if node.op_type == "Conv":
        return max(1, n_elements // shape[0])
    if node.op_type == "ConvTranspose":
        # With strides, each input contributes to fewer outputs.
        strides: int = math.prod(attribute(node, "strides", [1]))
        n_outputs = int(shape[1] * attribute(node, "group", 1))
        return max(1, n_elements // (n_outputs * strides))
    if node.op_type == "Gemm" and attribute(node, "transB", 0):
        return max(1, shape[-1])
    return max(1, shape[-2] if len(shape) > 1 else shape[0])


def _propagate(node: onnx.NodeProto, incoming: list[_Stats]) -> _Stats:
    """Estimate the statistics of a node's outputs to within an order of magnitude."""
    if not incoming or node.op_type in _ROLES:
        return _Stats()
    first = incoming[0]
    if node.op_type in {"Add", "Sum"}:
        return _Stats(sum(s.mean for s in incoming), sum(s.variance for s in incoming))
    if node.op_type == "Concat":
        mean = sum(s.mean for s in incoming) / len(incoming)
        mean_square = sum(s.mean_square for s in incoming) / len(incoming)
        return _Stats(mean, mean_square - mean**2)
    if node.op_type in {"Relu", "LeakyRelu", "Clip"}:
        return _rectify(first)
    if node.op_type == "MaxPool":
        # Nine independent normal values would give 1.5, but neighbours are correlated.
        return _Stats(first.mean + 1.2 * math.sqrt(first.variance), first.variance)
    factor = 0.4 if node.op_type in {"AveragePool", "GlobalAveragePool"} else 1.0
    return _Stats(first.mean, factor * first.variance)


def _rectify(data: _Stats) -> _Stats:
    """Return the statistics of max(x, 0) for a normal x."""
    deviation = math.sqrt(data.variance)
    z = data.mean / deviation
    density = math.exp(-z * z / 2.0) / math.sqrt(2.0 * math.pi)
    above = 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))
    mean = data.mean * above + deviation * density
    mean_square = data.mean_square * above + data.mean * deviation * density
    return _Stats(mean, max(mean_square - mean**2, 1e-6 * mean_square))


def _replace(model: onnx.ModelProto, arrays: dict[str, Array]) -> None:
    """Replace initialisers, Constant and ConstantOfShape nodes by arrays of the same name."""
    graph = model.graph
    nodes = [node for node in graph.node if node.output[0] not in arrays]
    constants = [tensor for tensor in graph.initializer if tensor.name not in arrays]
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.initializer[:]
    graph.initializer.extend(constants)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    # Before version 4 of the format, every initialiser must also be an input.
    model.ir_version = max(model.ir_version, 4)
