"""Folding of the lengths that a model computes with floats, in one walk along its operators.

onnxslim needs a turn for each length that follows from another one: a deep causal network, each
layer of which pads to a multiple of its stride, took a turn for each layer.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tuner.networks.onnx.foreign import is_foreign
from tuner.networks.onnx.graph import Array, attribute, constant_readers

#: Elements that a value may have; larger ones are data.
_MAX_SIZE = 1024
# Every runtime computes these to the same last bit.
_EXACT = frozenset(
    {
        *("Abs", "Add", "Ceil", "Div", "Floor", "Max", "Min", "Mul", "Neg", "Sqrt", "Sub"),
        *("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Where"),
        *("Cast", "Concat", "Constant", "ConstantOfShape", "Expand", "Flatten", "Gather"),
        *("Identity", "Reshape", "ScatterND", "Slice", "Split", "Squeeze", "Tile", "Transpose"),
        "Unsqueeze",
    }
)
# These round floats, or take other steps there.
_EXACT_FOR_INTEGERS = frozenset(
    {"CumSum", "Mod", "Range", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum"}
)
_EXACT_FOR_LENGTHS = _EXACT | _EXACT_FOR_INTEGERS
_SHAPES = ("Shape", "Size")
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
_DTYPES = frozenset({"bool", "float32", "float64", "int32", "int64"})

_Types = dict[str, onnx.TypeProto]


def fold_lengths(model: onnx.ModelProto) -> int:
    """Replace operators that compute lengths with floats by their results, in place.

    Args:
        model: Model with fixed input shapes, whose nodes are in order.

    Returns:
        Number of replaced operators.
    """
    graph = model.graph
    folded = _lengths_by_floats(graph).difference(info.name for info in graph.output)
    if not folded:
        return 0
    walk = _Walk(model)
    kept = []
    for node in graph.node:
        values = walk.step(node)
        if not values or not folded.issuperset(values):
            kept.append(node)
            continue
        for name, value in values.items():
            graph.initializer.append(numpy_helper.from_array(value, name))
    n_folded = len(graph.node) - len(kept)
    del graph.node[:]
    graph.node.extend(kept)
    return n_folded


def _lengths_by_floats(graph: onnx.GraphProto) -> set[str]:
    """Return the floats that are computed from nothing but shapes, and all that follows from them.

    onnxslim knows the others, and merges them with equal constants.
    """
    constants, lengths, by_floats = {*constant_readers(graph)}, set[str](), set[str]()
    for node in graph.node:
        names, operands = {*filter(None, node.output)}, {*filter(None, node.input)}
        is_known = all(name in constants or name in lengths for name in operands)
        is_exact = is_known and node.op_type in _EXACT_FOR_LENGTHS
        if node.op_type in _SHAPES or (is_exact and not lengths.isdisjoint(operands)):
            lengths |= names
            is_float = node.op_type == "Cast" and attribute(node, "to") in _FLOATS
            if is_float or not by_floats.isdisjoint(operands):
                by_floats |= names
        elif is_exact:
            constants |= names
    return by_floats


class _Walk:
    """Types of all values so far, and the contents of small ones that follow from the shapes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._imports = list(model.opset_import)
        self._versions = {item.domain or "ai.onnx": item.version for item in self._imports}
        self._types: _Types = {info.name: info.type for info in model.graph.input}
        for tensor in model.graph.initializer:
            self._types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        self._values: dict[str, Array] = {}
        self._tensors: dict[str, onnx.TensorProto] = {}
        for name, read in constant_readers(model.graph).items():
            known = self._types.get(name)
            if known is None or _size(known) <= _MAX_SIZE:
                self._keep(name, read())

    def step(self, node: onnx.NodeProto) -> Mapping[str, Array]:
        """Take the next node; return its results by name, or nothing if they are unknown."""
        if node.op_type == "Constant" and node.output[0] in self._types:
            return {}
        results = self._compute(node)
        if results is None:
            self._types |= self._infer(node)
            return {}
        values = dict(zip(node.output, results, strict=True))
        for name, value in values.items():
            self._keep(name, value)
        return values

    def _keep(self, name: str, value: Array) -> None:
        self._values[name] = value
        if name not in self._types:
            code = helper.np_dtype_to_tensor_dtype(value.dtype)
            self._types[name] = helper.make_tensor_type_proto(code, value.shape)

    def _compute(self, node: onnx.NodeProto) -> Sequence[Array] | None:
        """Return the results of a node; None if they depend on data, are large, or may be off."""
        if is_foreign(node) or not all(node.output):
            return None
        if node.op_type in _SHAPES:
            dims = _dims(self._types.get(node.input[0]))
            return None if dims is None else [_shape_of(node, dims)]
        operands = [self._values.get(name) for name in node.input if name]
        arrays = [each for each in operands if each is not None]
        if len(arrays) < len(operands) or not _is_exact(node.op_type, arrays):
            return None
        inferred = self._infer(node)
        if max(_size(inferred.get(name)) for name in node.output) > _MAX_SIZE:
            return None
        feeds = {name: self._values[name] for name in node.input if name}
        from onnx.reference import ReferenceEvaluator

        # Operands may be wrong, such as an index beyond the end: the model is refused elsewhere.
        try:
            opsets = {"": self._versions["ai.onnx"]}
            with np.errstate(all="raise"):
                results = ReferenceEvaluator(node, opsets=opsets).run(None, feeds)
            return [np.asarray(each) for each in results]
        except Exception:
            return None

    def _infer(self, node: onnx.NodeProto) -> _Types:
        """Return the types of a node's results that follow from its operands' types."""
        types = {name: self._types[name] for name in node.input if name in self._types}
        # The inference of graphs inside of nodes reads values from outside.
        has_graph = any(item.HasField("g") or item.graphs for item in node.attribute)
        if has_graph or len(types) < len({*filter(None, node.input)}):
            return {}
        data = {}
        for name in types.keys() & self._values.keys():
            if name not in self._tensors:
                self._tensors[name] = numpy_helper.from_array(self._values[name], name)
            data[name] = self._tensors[name]
        # An operator may be unknown, or its operands wrong, which is refused elsewhere.
        try:
            version = self._versions[node.domain or "ai.onnx"]
            domain = "" if node.domain == "ai.onnx" else node.domain
            schema = onnx.defs.get_schema(node.op_type, version, domain)
            infer = onnx.shape_inference.infer_node_outputs
            inferred: _Types = infer(schema, node, types, data, opset_imports=self._imports)
        except Exception:
            return {}
        return inferred


def _dims(kind: onnx.TypeProto | None) -> tuple[int, ...] | None:
    """Return the shape of a tensor; None if it is unknown."""
    tensor = kind.tensor_type if kind is not None else onnx.TypeProto.Tensor()
    dims = tensor.shape.dim
    is_fixed = tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in dims)
    return tuple(dim.dim_value for dim in dims) if is_fixed else None


def _size(kind: onnx.TypeProto | None) -> float:
    """Return the number of elements of a tensor; infinite if it is unknown."""
    dims = _dims(kind)
    return math.inf if dims is None else math.prod(dims)


def _shape_of(node: onnx.NodeProto, dims: tuple[int, ...]) -> Array:
    if node.op_type == "Size":
        return np.array(math.prod(dims), "int64")
    start, end = attribute(node, "start", 0), attribute(node, "end", len(dims))
    return np.array(dims[start:end], "int64")


def _is_exact(operator: str, operands: Sequence[Array]) -> bool:
    """Return whether every runtime computes the same result."""
    names = {each.dtype.name for each in operands}
    if operator in _EXACT_FOR_INTEGERS:
        return names <= {"int32", "int64"}
    return operator in _EXACT and names <= _DTYPES
