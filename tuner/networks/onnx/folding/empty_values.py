"""Removal of values without elements: kernels have at least one element."""

from collections.abc import Mapping
from itertools import count

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tuner.errors import ModelError
from tuner.networks.onnx.graph import attribute, count_uses
from tuner.networks.onnx.node_builder import opset_of

# What ONNX Runtime gives where there is nothing to reduce; a limit is the lowest or largest number.
_OF_NOTHING = {
    "Einsum": 0.0,
    "MatMul": 0.0,
    "ReduceL1": 0.0,
    "ReduceL2": 0.0,
    "ReduceLogSum": -np.inf,
    "ReduceLogSumExp": -np.inf,
    "ReduceMax": -np.inf,
    "ReduceMean": 0.0,
    "ReduceMin": np.inf,
    "ReduceProd": 1.0,
    "ReduceSum": 0.0,
    "ReduceSumSquare": 0.0,
}


def drop_empty_values(model: onnx.ModelProto) -> int:
    """Replace operators whose results have no elements by constants, in place.

    So are reductions of no elements. Operands of Concat and unread outputs of Split that have none
    are removed. Outputs of the model without elements stay: the tail may have to compute them.

    Args:
        model: Model whose ``value_info`` has the shapes of values; its main graph is changed.

    Returns:
        Number of changed nodes.

    Raises:
        ModelError: If a node returns the position of an extreme among no elements.
    """
    graph = model.graph
    empty = {tensor.name for tensor in graph.initializer if 0 in tensor.dims}
    infos = {info.name: info for info in (*graph.value_info, *graph.output)}
    sizes = {name: _sizes(info) for name, info in infos.items()}
    empty |= {name for name, each in sizes.items() if 0 in each}
    if not empty:
        return 0
    uses = count_uses(graph)
    # Before opset 13 the lengths of a Split are an attribute.
    is_recent = opset_of(model) >= 13
    unread = {name for name in empty if not uses[name]}
    known = {name for name, each in sizes.items() if -1 not in each}
    replaceable = (empty & known) - {output.name for output in graph.output}
    n_changed = 0
    for node in graph.node:
        if len(node.output) == 1 and node.op_type != "Constant":
            (name,) = node.output
            if name in replaceable or (name in known and _reduces_nothing(node, empty)):
                _make_constant(node, sizes[name], infos[name].type.tensor_type.elem_type)
                n_changed += 1
        if node.domain:
            continue
        if node.op_type == "Concat":
            n_changed += _shorten(node, node.input, empty)
        is_split = is_recent and node.op_type == "Split" and known.issuperset(node.output)
        if is_split and _shorten(node, node.output, unread):
            n_changed += 1
            _set_lengths(graph, node, sizes)
    return n_changed


def _reduces_nothing(node: onnx.NodeProto, empty: set[str]) -> bool:
    """Return whether a node returns elements that depend on none.

    Raises:
        ModelError: If they are positions.
    """
    # The others may be axes, of which there may be none.
    if node.domain or empty.isdisjoint(node.input[:1]) or not empty.isdisjoint(node.output):
        return False
    if node.op_type in ("ArgMax", "ArgMin"):
        raise ModelError(
            f"{node.op_type} has no elements along axis {attribute(node, 'axis', 0)}: export the "
            "model with other shapes",
            code="invalid-model",
        )
    return node.op_type in _OF_NOTHING


def _make_constant(node: onnx.NodeProto, sizes: list[int], kind: int) -> None:
    """Make a node a constant, whose elements are those of :data:`_OF_NOTHING`."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    number = _OF_NOTHING.get(node.op_type, 0.0)
    if dtype == np.bool_:
        number = number > 0
    elif np.isinf(number) and np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        number = limits.max if number > 0 else limits.min
    value = numpy_helper.from_array(np.full(sizes, number, dtype))
    constant = helper.make_node("Constant", [], list(node.output), name=node.name, value=value)
    node.CopyFrom(constant)


def _shorten(node: onnx.NodeProto, names: list[str], dropped: set[str]) -> bool:
    """Drop some operands or outputs of a node; it becomes an Identity if one is left."""
    kept = [name for name in names if name not in dropped]
    if not 0 < len(kept) < len(names):
        return False
    del names[:]
    names.extend(kept)
    if len(kept) == 1:
        node.op_type = "Identity"
        del node.attribute[:]
        del node.input[1:]
    return True


def _set_lengths(
    graph: onnx.GraphProto, node: onnx.NodeProto, sizes: Mapping[str, list[int]]
) -> None:
    """Give a Split that lost outputs the lengths of the remaining ones."""
    if node.op_type != "Split":
        return
    axis = next((item.i for item in node.attribute if item.name == "axis"), 0)
    lengths = [sizes[name][axis] for name in node.output]
    kept = [item for item in node.attribute if item.name == "axis"]
    del node.attribute[:]
    node.attribute.extend(kept)
    del node.input[1:]
    names = {tensor.name for tensor in graph.initializer}
    name = next(each for n in count() if (each := f"{node.output[0]}_lengths{n}") not in names)
    graph.initializer.append(numpy_helper.from_array(np.array(lengths), name))
    node.input.append(name)


def _sizes(info: onnx.ValueInfoProto) -> list[int]:
    """Return the known sizes of the dimensions, -1 for others and for an unknown rank."""
    if not info.type.tensor_type.HasField("shape"):
        return [-1]
    dims = info.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") else -1 for dim in dims]
