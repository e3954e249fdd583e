"""Puts random weights into a model whose own were left out, keeping every activation near 1.

The models that the onnx package ships hold ConstantOfShape(0.02) in place of every large weight:
each output is then 0.001 whatever the input, and a comparison of outputs proves nothing.
"""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from tuner.networks.graph import Array, attribute, constant_readers

#: Inputs that hold weights, and the part each plays. "variance" wins over all others, because a
#: constant shared with it must stay positive.
_PARTS = {
    "Conv": {1: "weight", 2: "shift"},
    "ConvTranspose": {1: "weight", 2: "shift"},
    "Gemm": {0: "weight", 1: "weight", 2: "shift"},
    "MatMul": {0: "weight", 1: "weight"},
    "BatchNormalization": {1: "scale", 2: "shift", 3: "mean", 4: "variance"},
}
#: The same where a placeholder or one number per channel feeds an operator.
_CHANNEL_PARTS = {
    "Mul": {0: "scale", 1: "scale"},
    "Add": {0: "shift", 1: "shift"},
    "Sum": {0: "shift", 1: "shift"},
}
_VIEWS = {"Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Cast", "Transpose"}
_MIN_WEIGHT_SIZE = 64


class _Placeholder(NamedTuple):
    """A constant known by its shape: one value repeated, nothing allocated."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


class _Stats(NamedTuple):
    """Estimated mean and variance over all elements of an activation."""

    mean: float = 0.0
    variance: float = 1.0

    @property
    def mean_square(self) -> float:
        """Of the elements; what a weighted sum of them grows with."""
        return self.mean**2 + self.variance


class _Use(NamedTuple):
    """The node and the part for which a constant is used."""

    node: onnx.NodeProto
    part: str


@dataclass
class _Weights:
    """The constants of a model that are weights, found by what reads them."""

    model: onnx.ModelProto
    uses: dict[str, _Use] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.model.graph
        self.readers = constant_readers(graph)
        self.placeholders = _find_placeholders(graph, self.readers)
        origin = {name: name for name in (*self.readers, *self.placeholders)}
        for node in graph.node:
            if node.op_type in _VIEWS and node.input and node.input[0] in origin:
                origin[node.output[0]] = origin[node.input[0]]
            for index, part in self._parts(node).items():
                name = origin.get(node.input[index], "") if index < len(node.input) else ""
                if not name or (node.op_type in _CHANNEL_PARTS and not self._is_vector(name)):
                    continue
                if name not in self.uses or part == "variance":
                    self.uses[name] = _Use(node, part)
        self.origin = origin

    def _parts(self, node: onnx.NodeProto) -> dict[int, str]:
        if node.domain not in ("", "ai.onnx"):
            return {}
        return _PARTS.get(node.op_type) or _CHANNEL_PARTS.get(node.op_type) or {}

    def _is_vector(self, name: str) -> bool:
        shape = self.shape(name)
        return name in self.placeholders or 1 < math.prod(shape) == max(shape)

    def shape(self, name: str) -> tuple[int, ...]:
        known = self.placeholders.get(name)
        return known.shape if known else self.readers[name]().shape

    def dtype(self, name: str) -> np.dtype[np.generic]:
        known = self.placeholders.get(name)
        return known.dtype if known else self.readers[name]().dtype

    def is_constant(self, name: str) -> bool:
        """Tell if all elements are equal; looks at a few first, because weights are large."""
        if name in self.placeholders:
            return True
        array = self.readers[name]().reshape(-1)
        return bool((array[:64] == array[0]).all() and (array == array[0]).all())


def is_degenerate(model: onnx.ModelProto) -> bool:
    """Tell if most of a model's weights, by number of elements, are tensors of one value."""
    weights = _Weights(model)
    n_elements = {
        name: math.prod(weights.shape(name))
        for name, use in weights.uses.items()
        if use.part == "weight" and math.prod(weights.shape(name)) >= _MIN_WEIGHT_SIZE
    }
    n_constant = sum(n for name, n in n_elements.items() if weights.is_constant(name))
    return 2 * n_constant > sum(n_elements.values())


def randomise_weights(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return a copy of a model with new weights, biases and batch norm statistics.

    The weights of Conv, ConvTranspose, Gemm, MatMul and BatchNormalization are replaced, and
    the constants per channel of Mul, Add and Sum. The mean square of every activation is
    estimated on the way, and a weight drawn with the variance 1 / (fan-in * that mean square),
    which is He's rule (ICCV'15) after a Relu and keeps residual sums from growing as well.

    Args:
        model: Not changed; operators inside If, Loop and Scan keep their weights.
        seed: At least 0; with a weight's name it fixes its values, whatever the order.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    weights = _Weights(result)
    arrays = _draw_all(weights, seed)
    _replace(result, arrays)
    return result


def _find_placeholders(
    graph: onnx.GraphProto, readers: dict[str, Callable[[], Array]]
) -> dict[str, _Placeholder]:
    found = {}
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in readers:
            value = attribute(node, "value")
            dtype = numpy_helper.to_array(value).dtype if value else np.dtype(np.float32)
            shape = tuple(int(size) for size in readers[node.input[0]]())
            if dtype.kind == "f":
                found[node.output[0]] = _Placeholder(shape, dtype)
    return found


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
    """Draw one constant, given the statistics of what the node works on."""
    if use.part == "weight":
        values = rng.standard_normal(shape, dtype=np.float32)
        values *= np.float32(1.0 / math.sqrt(_fan_in(use.node, shape) * data.mean_square))
        return values
    if use.part == "scale":
        return rng.uniform(0.8, 1.2, shape)
    if use.part == "variance":
        return data.variance * rng.uniform(0.8, 1.2, shape)
    if use.part == "mean":
        return data.mean + math.sqrt(data.variance) * rng.normal(0.0, 0.1, shape)
    return rng.normal(0.0, 0.1, shape)


def _fan_in(node: onnx.NodeProto, shape: tuple[int, ...]) -> int:
    """Return how many products one output element sums."""
    n_elements = math.prod(shape)
    if node.op_type == "Conv":
        return max(1, n_elements // shape[0])
    if node.op_type == "ConvTranspose":
        # Strides spread an input over as many outputs fewer.
        strides: int = math.prod(attribute(node, "strides", [1]))
        n_outputs = int(shape[1] * attribute(node, "group", 1))
        return max(1, n_elements // (n_outputs * strides))
    if node.op_type == "Gemm" and attribute(node, "transB", 0):
        return max(1, shape[-1])
    return max(1, shape[-2] if len(shape) > 1 else shape[0])


def _propagate(node: onnx.NodeProto, incoming: list[_Stats]) -> _Stats:
    """Estimate the statistics of a node's outputs; rough, for only the order must be right."""
    if not incoming or node.op_type in _PARTS:
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
        # Nine independent normal values would give 1.5; neighbours are correlated.
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
    """Put arrays in the place of initialisers, Constant and ConstantOfShape nodes of that name."""
    graph = model.graph
    nodes = [node for node in graph.node if node.output[0] not in arrays]
    constants = [tensor for tensor in graph.initializer if tensor.name not in arrays]
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.initializer[:]
    graph.initializer.extend(constants)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    # Only since version 4 of the format may an initialiser not be an input.
    model.ir_version = max(model.ir_version, 4)
