"""Repair of what ONNX Runtime reads and the checker of onnx refuses, where it has one meaning."""

from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tuner.errors import ModelError
from tuner.networks.onnx.control_flow.subgraphs import own_names
from tuner.networks.onnx.foreign import is_foreign
from tuner.networks.onnx.functions import version_of
from tuner.networks.onnx.graph import nodes_within
from tuner.networks.onnx.inference import infer_shapes
from tuner.networks.onnx.onnx_file import check_size

_ALIAS = "ai.onnx"
# Fields of a tensor that hold its elements if ``raw_data`` does not.
_TYPED_DATA = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
# Operators with as many outputs as the node names, those with nested graphs first: the number of
# outputs of a graph that the node lacks.
_ANY_OUTPUTS = {"If": 0, "Loop": 1, "Scan": 0, "Split": 0}


def repair(model: onnx.ModelProto) -> None:
    """Repair a model in place, its functions and nested graphs included.

    Missing names of graphs, the order of nodes, domains, repeated imports, outputs and weights,
    weights in two forms, sparse weights and missing types of outputs are repaired. Declared
    shapes of inner values, which runtimes do not rely on, and metadata are dropped.

    Raises:
        ModelError: If operators form a cycle, or a repetition contradicts the first.
    """
    for field in ("metadata_props", "training_info"):
        model.ClearField(field)
    _unify_domains(model)
    _check_sparse(model)
    for graph in _graphs_within(model):
        graph.name = graph.name or "graph"
        del graph.value_info[:]
        for tensor in graph.sparse_initializer:
            graph.initializer.append(_dense(tensor))
        del graph.sparse_initializer[:]
        for tensor in graph.initializer:
            _drop_second_form(tensor)
        _drop_repeated(graph.initializer, _same_tensors, "initialiser")
    drop_repeated_outputs(model.graph)
    # The graphs inside of a node move with it.
    for owner in reversed([*model.functions, *_graphs_within(model)]):
        _repair_nodes(owner)


def _graphs_within(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    yield model.graph
    for owner in (model.graph, *model.functions):
        for node in nodes_within(owner):
            for item in node.attribute:
                yield from ([item.g] if item.HasField("g") else item.graphs)


def _unify_domains(model: onnx.ModelProto) -> None:
    """Give the standard one name, and each domain one version."""
    for owner in (model, *model.functions):
        inner = model.graph if owner is model else owner
        nodes = [*nodes_within(inner)]
        for named in (*nodes, *owner.opset_import):
            if named.domain == _ALIAS:
                named.ClearField("domain")
        # Keep the last version of each domain, as ONNX Runtime does, where all mean the same.
        versions: dict[str, int] = {}
        for item in owner.opset_import:
            former = versions.get(item.domain, item.version)
            for node in nodes if former != item.version else ():
                same = version_of(node, former) == version_of(node, item.version)
                if node.domain == item.domain and not (same and not item.domain):
                    raise _contradiction(
                        f"imports versions {former} and {item.version} of the domain "
                        f"{item.domain or _ALIAS!r}, and {node.op_type} differs between them"
                    )
            versions[item.domain] = item.version
        if len(versions) < len(owner.opset_import):
            del owner.opset_import[:]
            owner.opset_import.extend(onnx.helper.make_opsetid(*each) for each in versions.items())
    for function in model.functions:
        if function.domain == _ALIAS:
            function.ClearField("domain")


def drop_repeated_outputs(graph: onnx.GraphProto) -> bool:
    """Drop repeated outputs of the main graph, in place; return whether it had any.

    Outputs of the graphs inside of nodes count by position, and stay.
    """
    before = len(graph.output)
    _drop_repeated(graph.output, _same_outputs, "output")
    return len(graph.output) < before


def _drop_second_form(tensor: onnx.TensorProto) -> None:
    """Drop the elements of a tensor that it also has as bytes, which ONNX Runtime reads."""
    others = [field for field in _TYPED_DATA if len(getattr(tensor, field))]
    if not tensor.HasField("raw_data") or not others:
        return
    typed, raw = onnx.TensorProto(), onnx.TensorProto()
    typed.CopyFrom(tensor)
    raw.CopyFrom(tensor)
    typed.ClearField("raw_data")
    for field in others:
        raw.ClearField(field)
    if not _same_tensors(typed, raw):
        raise _contradiction(f"has weight {tensor.name!r} in two forms with different elements")
    tensor.CopyFrom(raw)


def _drop_repeated(items: Any, same: Callable[[Any, Any], bool], kind: str) -> None:
    """Drop initialisers and outputs whose name an equal one has, and weights without a name."""
    first: dict[str, Any] = {}
    for item in items:
        if not same(first.setdefault(item.name, item), item) and item.name:
            raise _contradiction(f"has two different {kind}s of the name {item.name!r}")
    first.pop("", None)
    if len(first) < len(items):
        kept = [type(item).FromString(item.SerializeToString()) for item in first.values()]
        del items[:]
        items.extend(kept)


def _same_tensors(one: onnx.TensorProto, other: onnx.TensorProto) -> bool:
    if one is other or (one.data_type, one.dims) != (other.data_type, other.dims):
        return one is other
    if one.data_type == onnx.TensorProto.STRING:
        return list(one.string_data) == list(other.string_data)
    try:
        first, second = (numpy_helper.to_array(tensor).tobytes() for tensor in (one, other))
    # Elements that do not fit the shape, or of an unknown type.
    except (KeyError, TypeError, ValueError):
        return False
    return bool(first == second)


def _same_outputs(one: onnx.ValueInfoProto, other: onnx.ValueInfoProto) -> bool:
    return bool(one.type.WhichOneof("value") == other.type.WhichOneof("value"))


def _repair_nodes(owner: onnx.GraphProto | onnx.FunctionProto) -> None:
    """Make sparse constants dense, drop outputs without a name, and sort the nodes."""
    for node in [node for node in owner.node if not any(node.output)]:
        owner.node.remove(node)
    for node in owner.node:
        _repair_outputs(node)
        for item in node.attribute:
            if node.op_type == "Constant" and item.HasField("sparse_tensor"):
                item.CopyFrom(onnx.helper.make_attribute("value", _dense(item.sparse_tensor)))
    makers = {name: i for i, node in enumerate(owner.node) for name in node.output if name}
    reads = [{makers[name] for name in _reads(node) if name in makers} for node in owner.node]
    if all(max(read, default=-1) < index for index, read in enumerate(reads)):
        return
    try:
        order = [*TopologicalSorter(dict(enumerate(reads))).static_order()]
    except CycleError as error:
        value = owner.node[error.args[1][0]].output[0]
        raise _contradiction(f"has operators that form a cycle through {value!r}") from None
    ranks = {tuple(owner.node[index].output): rank for rank, index in enumerate(order)}
    owner.node.sort(key=lambda node: ranks[tuple(node.output)])


def _repair_outputs(node: onnx.NodeProto) -> None:
    """Drop empty names behind the last output; give them one where their number has a meaning."""
    n_lacking = None if is_foreign(node) else _ANY_OUTPUTS.get(node.op_type)
    if n_lacking is None:
        while not node.output[-1]:
            node.output.pop()
        return
    first = next(filter(None, node.output))
    for index, name in enumerate(node.output):
        node.output[index] = name or f"{first}@unused{index}"
    for item in node.attribute:
        n_outputs = len(item.g.output) - n_lacking if item.HasField("g") else len(node.output)
        if node.op_type == "Split" and item.name == "num_outputs":
            n_outputs = item.i
        if n_outputs != len(node.output):
            raise _contradiction(
                f"has {node.op_type} {first!r} of {len(node.output)} outputs, whose {item.name} "
                f"gives {n_outputs}"
            )


def _reads(node: onnx.NodeProto) -> set[str]:
    """Return the values that a node and its nested graphs read from outside."""
    read = {*node.input}
    for item in node.attribute:
        for graph in (item.g, *item.graphs):
            inner = {info.name for info in graph.output}.union(*map(_reads, graph.node))
            read |= inner - own_names(graph)
    return read


def _check_sparse(model: onnx.ModelProto) -> None:
    """Check that the sparse weights of a model are of a bounded size together."""
    graphs = [*_graphs_within(model)]
    tensors = [tensor for graph in graphs for tensor in graph.sparse_initializer]
    nodes = [node for owner in (*graphs, *model.functions) for node in owner.node]
    constants = [item for node in nodes if node.op_type == "Constant" for item in node.attribute]
    tensors += [item.sparse_tensor for item in constants if item.HasField("sparse_tensor")]
    n_bytes = 0
    for tensor in tensors:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.values.data_type)
        n_bytes += max(prod(tensor.dims), 0) * dtype.itemsize
    check_size(n_bytes, "the model with the zeros of its sparse weights")


def _dense(tensor: onnx.SparseTensorProto) -> onnx.TensorProto:
    """Return a sparse tensor with its zeros; its indices are of one axis or of all."""
    try:
        values = numpy_helper.to_array(tensor.values)
        indices = numpy_helper.to_array(tensor.indices)
        if indices.ndim == 1:
            indices = np.array(np.unravel_index(indices, tensor.dims)).T
        array = np.zeros(tuple(tensor.dims), values.dtype)
        if indices.min(initial=0) < 0:
            raise IndexError(indices)  # it would count from the end
        array[tuple(indices.T)] = values
    except (IndexError, OverflowError, ValueError):
        raise _contradiction(
            f"has the sparse weight {tensor.values.name!r}, whose indices do not fit its shape"
        ) from None
    return numpy_helper.from_array(array, tensor.values.name)


def add_output_types(model: onnx.ModelProto) -> None:
    """Infer the types of outputs that have none."""
    untyped = [info for info in model.graph.output if info.type.WhichOneof("value") is None]
    if not untyped:
        return
    inferred = infer_shapes(model).graph.output
    types = {info.name: info.type for info in inferred}
    for info in untyped:
        info.type.CopyFrom(types[info.name])


def _contradiction(text: str) -> ModelError:
    return ModelError(f"the model {text}: export it again", code="invalid-model")
