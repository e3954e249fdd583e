"""Separation of the operators whose shapes depend on data from the rest of an ONNX model.

The *tail* begins with operators that choose among their operands, such as NonMaxSuppression, and
has everything that depends on them. What is left has fixed shapes and is compiled.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

import onnx

from tuner.library.manifest import Tail
from tuner.networks.onnx.foreign import is_foreign
from tuner.networks.onnx.foreign import refusal as refuse_operators
from tuner.networks.onnx.graph import has_fixed_shape, nodes_within, reads_of
from tuner.networks.onnx.inputs.random_draws import refuse_random
from tuner.networks.onnx.unknown_shapes import CHOOSING, first_unknown

#: Key of the tail among the metadata of a cleaned model.
_KEY = "tail"
# ONNX Runtime runs their kernels in the tail; other domains are unknown to it.
_KNOWN_DOMAINS = ("com.microsoft",)
# Their outputs have other shapes for other reasons, which the refusals of models explain.
_CONTROL = frozenset({"If", "Loop", "Scan"})

_NO_NUMBERS = (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING)

Infos = Mapping[str, onnx.ValueInfoProto]


def split_tail(model: onnx.ModelProto, declared: Infos) -> onnx.ModelProto | None:
    """Move the operators behind a shape that depends on data into a model of their own.

    Args:
        model: Simplified model with ``value_info`` of all shapes that could be inferred; its
            outputs become those that are not behind such a shape, then what the tail reads.
        declared: Outputs by name as the model declares them; empty if they may be wrong.

    Returns:
        The tail, with all outputs of the model in their order, of which it reads those that it
        does not compute; None if every shape is fixed, if nothing is left before the tail, or if
        the shape of an output that is not behind it is unknown.

    Raises:
        ModelError: If the tail draws random numbers, or has operators that no runtime knows.
    """
    graph = model.graph
    inferred = _inferred_infos(graph)
    trusted = _trusted_shapes(graph, declared, inferred.keys())
    infos = _fixed_infos(trusted.values()) | inferred
    # The tail reads nothing without a fixed shape: what computes that is part of it.
    unfixed = frozenset(_made(graph) - infos.keys())
    behind = _behind(graph, _beginnings(model, infos.keys()), unfixed)
    nodes = [node for node in graph.node if not behind.isdisjoint(node.output)]
    kept = [node for node in graph.node if behind.isdisjoint(node.output)]
    constants = [node for node in kept if node.op_type == "Constant"]
    if not nodes or len(constants) == len(kept):
        return None
    tail = _tail_of(model, [*constants, *nodes])
    read = {name for node in nodes for name in reads_of(node)}
    returned = [info.name for info in graph.output if info.name not in behind]
    made = {name for node in kept if node.op_type != "Constant" for name in node.output}
    returned += sorted((read & made).difference(returned))
    if not infos.keys() >= {*returned}:
        return None
    # An input of the model may be an output too.
    given = dict.fromkeys([*(info.name for info in graph.input if info.name in read), *returned])
    tail.graph.input.extend(infos[name] for name in given)
    tail.graph.output.extend(infos.get(info.name, info) for info in graph.output)
    _check(tail)
    _replace(graph.node, kept)
    _replace(graph.output, [infos[name] for name in returned])
    return tail


def _tail_of(model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    """Return some nodes with the constants that they read, without inputs and outputs."""
    tail = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    read = {name for node in nodes for name in reads_of(node)}
    for node in nodes:
        if node.op_type != "Constant" or node.output[0] in read:
            tail.graph.node.append(node)
    tail.graph.initializer.extend(t for t in model.graph.initializer if t.name in read)
    return tail


def describe_tail(tail: onnx.ModelProto, head: onnx.ModelProto) -> Tail:
    """Return the facts about a tail that are shown to people."""
    first = next((node for node in tail.graph.node if node.op_type in CHOOSING), None)
    own = [node.op_type for node in tail.graph.node if node.op_type != "Constant"]
    n_head = sum(node.op_type != "Constant" for node in head.graph.node)
    return Tail(
        first=first.op_type if first is not None else own[0],
        n_operators=len(own),
        n_all=len(own) + n_head,
        returned=tuple(info.name for info in head.graph.output),
    )


def attach_tail(model: onnx.ModelProto, tail: bytes) -> None:
    """Store a serialised tail in the model that it was split from."""
    onnx.helper.set_model_props(model, {_KEY: base64.b64encode(tail).decode()})


def tail_of(model: onnx.ModelProto) -> bytes:
    """Return the serialised tail of a cleaned model; empty if it has none."""
    stored = {item.key: item.value for item in model.metadata_props}
    return base64.b64decode(stored.get(_KEY, ""))


def with_tail(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a cleaned model with the operators of its tail back in its graph."""
    stored = tail_of(model)
    if not stored:
        return model
    joined, tail = onnx.ModelProto(), onnx.ModelProto.FromString(stored)
    joined.CopyFrom(model)
    del joined.metadata_props[:]
    names = {tensor.name for tensor in joined.graph.initializer}
    names |= {name for node in joined.graph.node for name in node.output if name}
    joined.graph.initializer.extend(t for t in tail.graph.initializer if t.name not in names)
    joined.graph.node.extend(n for n in tail.graph.node if names.isdisjoint(n.output))
    _replace(joined.graph.output, tail.graph.output)
    return joined


def trusted_shapes(model: onnx.ModelProto, declared: Infos) -> Infos:
    """Return the declared outputs of a simplified model that no choice is in front of.

    Exporters declare the size that one run of the model had.
    """
    return _trusted_shapes(model.graph, declared, _inferred_infos(model.graph).keys())


def _trusted_shapes(graph: onnx.GraphProto, declared: Infos, fixed: Set[str]) -> Infos:
    behind = _behind(graph, _choosing(graph, fixed))
    return {name: info for name, info in declared.items() if name not in behind}


def _choosing(graph: onnx.GraphProto, fixed: Set[str]) -> list[onnx.NodeProto]:
    """Return the operators that choose among their operands by the data."""
    return [
        node
        for node in graph.node
        if node.op_type in CHOOSING
        and not is_foreign(node)
        and not fixed >= {*filter(None, node.output)}
    ]


def _beginnings(model: onnx.ModelProto, fixed: Set[str]) -> list[onnx.NodeProto]:
    """Return the operators that a tail begins with; none if the model needs no tail.

    If it needs one, these are all that lose a shape, since no kernel computes what has none.
    """
    choosing = _choosing(model.graph, fixed)
    known = fixed | _behind(model.graph, choosing, frozenset(_made(model.graph) - fixed))
    outputs = [info.name for info in model.graph.output if info.name not in known]
    lost = [node for name in outputs for node in first_unknown(model, name)]
    lost = [node for node in lost if _may_begin(node)]
    return [*choosing, *lost, *_losing(model.graph, fixed)] if choosing or lost else []


def _losing(graph: onnx.GraphProto, fixed: Set[str]) -> Iterator[onnx.NodeProto]:
    """Yield the operators that return tensors without a fixed shape, but read none."""
    # The importer knows the lengths of sequences.
    values = (*graph.value_info, *graph.output)
    others = {info.name for info in values if info.type.WhichOneof("value") == "sequence_type"}
    unfixed = _made(graph) - fixed
    for node in graph.node:
        loses = not unfixed.difference(others).isdisjoint(node.output)
        if loses and unfixed.isdisjoint(reads_of(node)) and _may_begin(node):
            yield node


def _may_begin(node: onnx.NodeProto) -> bool:
    return not is_foreign(node) and node.op_type not in _CONTROL


def _made(graph: onnx.GraphProto) -> set[str]:
    """Return the values that operators make; constants are copied to where they are read."""
    nodes = [node for node in graph.node if node.op_type != "Constant"]
    return {name for node in nodes for name in node.output if name}


def _behind(
    graph: onnx.GraphProto, first: list[onnx.NodeProto], unfixed: frozenset[str] = frozenset()
) -> set[str]:
    """Return the values of some operators and all that depends on them.

    Args:
        first: The operators.
        unfixed: Values that belong to those of their readers, and bring all that depends on them.
    """
    behind = {name for node in first for name in node.output if name}
    n_before = -1
    while len(behind) > n_before:
        n_before = len(behind)
        for node in graph.node:
            if not behind.isdisjoint(reads_of(node)):
                behind.update(filter(None, node.output))
            if not behind.isdisjoint(node.output):
                behind.update(unfixed.intersection(reads_of(node)))
                behind.update(filter(None, node.output))
    return behind


def _inferred_infos(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    """Return the :func:`_fixed_infos` of a graph, whose outputs may be constants."""
    constants = [
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in graph.initializer
    ]
    return _fixed_infos([*graph.output, *graph.value_info, *graph.input, *constants])


def _fixed_infos(infos: Iterable[onnx.ValueInfoProto]) -> dict[str, onnx.ValueInfoProto]:
    """Return the values, by name, that are numbers with a fixed shape and have an element."""
    fixed = {}
    for info in infos:
        is_number = info.type.tensor_type.elem_type not in _NO_NUMBERS
        if is_number and has_fixed_shape(info):
            fixed[info.name] = info
    return fixed


def _check(tail: onnx.ModelProto) -> None:
    refuse_random(tail)
    foreign = [
        node
        for node in nodes_within(tail.graph)
        if is_foreign(node) and node.domain not in _KNOWN_DOMAINS
    ]
    if foreign:
        raise refuse_operators(tail, foreign)


def _replace(repeated: Any, items: Iterable[Any]) -> None:
    """Replace the items of a repeated field, which may be among the new ones."""
    copies = [type(item).FromString(item.SerializeToString()) for item in items]
    del repeated[:]
    repeated.extend(copies)
