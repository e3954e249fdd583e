"""Folding of per-channel scales and shifts into the layer before them.

onnxslim has similar fusions. They are switched off in favour of these, because its version for Mul
mistakes a constant along the width for one along the channels when both have the same length,
misses BatchNormalization followed by Mul and Add (DenseNet), scalars, Sub and Div, and does not
report its changes.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import numpy_helper

from tuner.networks.onnx.graph import (
    Array,
    attribute,
    constant_readers,
    count_uses,
    drop_unused_constants,
)

_LAYERS = {"Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization"}
_ARITHMETIC = {"Add", "Sub", "Mul", "Div"}


@dataclass(frozen=True)
class _Affine:
    """y = scale * x + shift along axis 1; both of shape (channels,) or (1,), float64."""

    scale: Array
    shift: Array


@dataclass
class _Folder:
    """One pass over a graph whose constants are initialisers."""

    model: onnx.ModelProto
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        graph = self.model.graph
        self._constants = constant_readers(graph)
        self._uses = count_uses(graph)
        self._ranks = {
            info.name: len(info.type.tensor_type.shape.dim)
            for info in (*graph.value_info, *graph.input, *graph.output)
            if info.type.tensor_type.HasField("shape")
        }

    def run(self) -> Counter[str]:
        """Fold in place; return the number of removed nodes by operator."""
        graph = self.model.graph
        layers: dict[str, onnx.NodeProto] = {}
        kept: list[onnx.NodeProto] = []
        for node in graph.node:
            source = self._data_input(node)
            layer = layers.pop(source, None) if source else None
            if layer is not None and self._fold(node, layer, source):
                layer.output[0] = node.output[0]
                self.counts[node.op_type] += 1
                layers[node.output[0]] = layer
                continue
            kept.append(node)
            if node.op_type in _LAYERS and node.domain == "":
                layers[node.output[0]] = node
        del graph.node[:]
        graph.node.extend(kept)
        drop_unused_constants(graph)
        return self.counts

    def _data_input(self, node: onnx.NodeProto) -> str:
        """Return the only input that is not a constant, "" if the node cannot be folded."""
        if node.domain or node.op_type not in {*_ARITHMETIC, "BatchNormalization"}:
            return ""
        data = [name for name in node.input if name not in self._constants]
        return data[0] if len(data) == 1 else ""

    def _fold(self, node: onnx.NodeProto, layer: onnx.NodeProto, source: str) -> bool:
        if self._uses[source] != 1 or not _is_inference(layer):
            return False
        rank = self._rank(layer)
        n_channels = self._channels(layer)
        if n_channels is None or rank is None:
            return False
        affine = self._affine(node, rank, n_channels)
        return affine is not None and self._apply(layer, affine, n_channels)

    def _rank(self, layer: onnx.NodeProto) -> int | None:
        """Return the rank of a layer's output; that of a convolution is the rank of its weight."""
        if layer.op_type in {"Conv", "ConvTranspose", "Gemm"}:
            weight = self._constants.get(layer.input[1])
            return weight().ndim if weight else None
        return self._ranks.get(layer.output[0])

    def _channels(self, layer: onnx.NodeProto) -> int | None:
        """Return the length of a layer's output along axis 1, None if it is unknown."""
        weight = self._constants.get(layer.input[1])
        if weight is None:
            return None
        shape: tuple[int, ...] = weight().shape
        if layer.op_type == "MatMul" and (len(shape) != 2 or self._rank(layer) != 2):
            # Only in a matrix is axis 1 the last axis, which the columns of the weight form.
            return None
        if layer.op_type == "ConvTranspose":
            return shape[1] * int(attribute(layer, "group", 1))
        return shape[_output_axis(layer)]

    def _affine(self, node: onnx.NodeProto, rank: int, n_channels: int) -> _Affine | None:
        if node.op_type == "BatchNormalization":
            return self._affine_of_batch_norm(node)
        left = node.input[0] in self._constants
        constant = self._constants[node.input[0 if left else 1]]()
        values = _along_channels(constant, rank, n_channels)
        if values is None:
            return None
        one, zero = np.ones(1), np.zeros(1)
        if node.op_type == "Add":
            return _Affine(one, values)
        if node.op_type == "Sub":
            return _Affine(-one, values) if left else _Affine(one, -values)
        if node.op_type == "Mul":
            return _Affine(values, zero)
        return None if left or not values.all() else _Affine(1.0 / values, zero)

    def _affine_of_batch_norm(self, node: onnx.NodeProto) -> _Affine | None:
        if not _is_inference(node):
            return None
        arrays = [self._constants[name]().astype(np.float64) for name in node.input[1:]]
        scale, bias, mean, variance = arrays
        factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
        return _Affine(factor, bias - mean * factor)

    def _apply(self, layer: onnx.NodeProto, affine: _Affine, n_channels: int) -> bool:
        """Replace a layer's weights; input 1 is the scale and input 2 the shift of each layer."""
        # A MatMul would get an extra bias for a scalar that its own fusion handles equally well.
        if layer.op_type == "MatMul" and affine.scale.size == 1:
            return False
        weight = self._constants[layer.input[1]]()
        if _is_quantised(weight) and (affine.scale != 1.0).any():
            return False
        has_bias = len(layer.input) > 2 and layer.input[2] != ""
        if has_bias and layer.input[2] not in self._constants:
            return False
        bias = self._constants[layer.input[2]]() if has_bias else np.zeros(1)
        bias = bias.astype(np.float64) * attribute(layer, "beta", 1.0)
        if bias.ndim > 1 and bias.size != bias.shape[-1]:
            return False
        new_weight = (weight * _weight_factor(layer, weight, affine.scale)).astype(weight.dtype)
        new_bias = np.broadcast_to(bias.reshape(-1) * affine.scale + affine.shift, (n_channels,))
        new_bias = new_bias.astype(weight.dtype)
        if not (np.isfinite(new_weight).all() and np.isfinite(new_bias).all()):
            return False
        names = [
            self._add(f"{layer.output[0]}_{part}", array)
            for part, array in (("weight", new_weight), ("bias", new_bias))
        ]
        rest = layer.input[3:]
        data = layer.input[0]
        del layer.input[:]
        layer.input.extend([data, *names, *rest])
        if layer.op_type == "MatMul":
            layer.op_type = "Gemm"
        kept = [item for item in layer.attribute if item.name != "beta"]
        del layer.attribute[:]
        layer.attribute.extend(kept)
        return True

    def _add(self, name: str, array: Array) -> str:
        while name in self._constants:
            name += "_"
        self.model.graph.initializer.append(numpy_helper.from_array(array, name))
        self._constants[name] = lambda: array
        return name


def fold_affine(model: onnx.ModelProto) -> Counter[str]:
    """Fold constant scales and shifts into the Conv, Gemm or BatchNormalization before them.

    Args:
        model: Model to change in place; its ``value_info`` gives the ranks of values.

    Returns:
        Number of removed nodes by operator.
    """
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)
    # Before opset 7, arithmetic operators broadcast by attributes instead of from the right.
    return _Folder(model).run() if opset >= 7 else Counter()


def _is_inference(node: onnx.NodeProto) -> bool:
    if node.op_type != "BatchNormalization":
        return True
    # `spatial=0` (before opset 9) normalises every position separately.
    training = attribute(node, "training_mode", 0) or not attribute(node, "spatial", 1)
    return not training and sum(bool(name) for name in node.output) == 1


def _is_quantised(weight: Array) -> bool:
    """Return whether a weight has whole bytes, which engines multiply as such."""
    if weight.dtype != np.float32 or not weight.any():
        return False
    return bool(np.abs(weight).max() < 256 and (weight == np.round(weight)).all())


def _along_channels(constant: Array, rank: int, n_channels: int) -> Array | None:
    """Return a constant as float64 (channels,) or (1,); None if it varies along another axis."""
    if constant.dtype.kind != "f" or constant.ndim > rank:
        return None
    shape = [1] * (rank - constant.ndim) + list(constant.shape)
    if constant.size != 1 and shape != [1, n_channels] + [1] * (rank - 2):
        return None
    return constant.reshape(-1).astype(np.float64)


def _weight_factor(layer: onnx.NodeProto, weight: Array, scale: Array) -> Array:
    """Reshape a per-channel scale so that it multiplies a layer's weight."""
    if scale.size == 1 or layer.op_type == "BatchNormalization":
        return scale
    if layer.op_type == "ConvTranspose":
        # (in, out / group, *kernel): every group of inputs has separate outputs.
        n_groups = attribute(layer, "group", 1)
        rows = np.repeat(scale.reshape(n_groups, -1), weight.shape[0] // n_groups, axis=0)
        return rows.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2))
    shape = [1] * weight.ndim
    shape[_output_axis(layer)] = -1
    return scale.reshape(shape)


def _output_axis(layer: onnx.NodeProto) -> int:
    """Return the axis of a layer's weight that corresponds to its outputs."""
    is_product = layer.op_type in {"Gemm", "MatMul"}
    return 1 if is_product and not attribute(layer, "transB", 0) else 0
