"""Queries on ONNX graphs: constants, uses and attributes."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """Return an attribute's value as a Python object, or the default."""
    for item in node.attribute:
        if item.name == name:
            return onnx.helper.get_attribute_value(item)
    return default


def nodes_within(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of a graph and of the subgraphs of its If, Loop and Scan nodes."""
    for node in graph.node:
        yield node
        for item in node.attribute:
            for inner in (item.g, *item.graphs):
                yield from nodes_within(inner)


def reads_of(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the values that a node and its subgraphs read.

    The empty names of omitted operands are not among them.
    """
    yield from filter(None, node.input)
    for item in node.attribute:
        for graph in (item.g, *item.graphs):
            yield from (info.name for info in graph.output)
            for inner in graph.node:
                yield from reads_of(inner)


def count_uses(graph: onnx.GraphProto) -> Counter[str]:
    """Count the reads of each value by name, including reads as a graph output."""
    uses = Counter(output.name for output in graph.output)
    for node in nodes_within(graph):
        uses.update(node.input)
    return uses


def constant_readers(graph: onnx.GraphProto) -> dict[str, Callable[[], Array]]:
    """Return a function for every initialiser and Constant node that reads its array.

    Large weights cost memory and time, so nothing is read before the function is called.
    """
    return readers_of(graph.initializer, graph.node)


def readers_of(
    initialisers: Iterable[onnx.TensorProto], nodes: Iterable[onnx.NodeProto]
) -> dict[str, Callable[[], Array]]:
    """Return the :func:`constant_readers` of parts of a graph."""
    readers: dict[str, Callable[[], Array]] = {}
    for tensor in initialisers:
        readers[tensor.name] = partial(numpy_helper.to_array, tensor)
    for node in nodes:
        value = attribute(node, "value") if node.op_type == "Constant" else None
        if value is not None:
            readers[node.output[0]] = partial(numpy_helper.to_array, value)
    return readers


def fixed_shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """Return the shape of every value that has a known one without dynamic dimensions."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for info in (*graph.value_info, *graph.input, *graph.output):
        if has_fixed_shape(info):
            shapes[info.name] = tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
    return shapes


def has_fixed_shape(info: onnx.ValueInfoProto) -> bool:
    """Return whether a value is a tensor with elements and known dimensions."""
    tensor = info.type.tensor_type
    # Exporters write 0 or -1 for unknown dimensions.
    return tensor.HasField("shape") and all(dim.dim_value > 0 for dim in tensor.shape.dim)


def check_model(model: onnx.ModelProto) -> None:
    """Check a model by the checker of onnx, which asks for the shapes of outputs.

    ONNX Runtime and the inference do without them.

    Raises:
        Exception: Errors of several types, if it is refused.
    """
    tensors = [info.type.tensor_type for info in model.graph.output]
    open_tensors = [tensor for tensor in tensors if not tensor.HasField("shape")]
    for tensor in open_tensors:
        tensor.shape.SetInParent()
    try:
        onnx.checker.check_model(model)
    finally:
        for tensor in open_tensors:
            tensor.ClearField("shape")


def clear_output_shapes(graph: onnx.GraphProto) -> None:
    """Clear the dimensions of outputs, which may be wrong; keep inputs and weights.

    The inference of shapes takes an output that is one of them for one of unknown dimensions too.
    """
    known = {info.name: info for info in graph.input}
    for tensor in graph.initializer:
        known[tensor.name] = onnx.helper.make_tensor_value_info(
            tensor.name, tensor.data_type, tensor.dims
        )
    for info in graph.output:
        if info.name in known:
            info.CopyFrom(known[info.name])
            continue
        for dim in info.type.tensor_type.shape.dim:
            dim.Clear()


def drop_unused_constants(graph: onnx.GraphProto) -> None:
    """Remove the initialisers that no node reads."""
    uses = count_uses(graph)
    kept = [tensor for tensor in graph.initializer if uses[tensor.name]]
    if len(kept) < len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(kept)
