"""Copies of the graphs inside If, Loop and Scan nodes, as part of the graph around them."""

from collections import ChainMap
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

import onnx

_NO_NAMES: Mapping[str, str] = {}


@dataclass(frozen=True)
class Inlined:
    """Copy of a graph whose values have unique names.

    Attributes:
        initialisers: Its constants.
        outputs: Name of each of its outputs.
    """

    nodes: list[onnx.NodeProto]
    initialisers: list[onnx.TensorProto]
    outputs: list[str]


def inline(graph: onnx.GraphProto, prefix: str, inputs: Mapping[str, str] = _NO_NAMES) -> Inlined:
    """Copy a graph for the graph around it.

    Args:
        graph: Graph of a node.
        prefix: Unique text before the names of its values.
        inputs: Value for each of its inputs, by name.
    """
    local = {tensor.name for tensor in graph.initializer}
    local |= {name for inner in graph.node for name in inner.output if name}
    names = ChainMap({**inputs, **{name: prefix + name for name in local}})
    initialisers, nodes = [], []
    for tensor in graph.initializer:
        weight = onnx.TensorProto()
        weight.CopyFrom(tensor)
        weight.name = prefix + tensor.name
        initialisers.append(weight)
    for inner in graph.node:
        node = onnx.NodeProto()
        node.CopyFrom(inner)
        _rename(node, names, prefix)
        nodes.append(node)
    return Inlined(nodes, initialisers, [names.get(out.name, out.name) for out in graph.output])


def separate_names(graph: onnx.GraphProto, outer: Set[str] = frozenset(), depth: int = 1) -> None:
    """Rename the values of nested graphs that hide others, in place.

    onnxslim reads a hidden initialiser instead of the one that hides it.

    Args:
        graph: Graph around them.
        outer: Names of the values around it.
        depth: Number of graphs around the nested ones.
    """
    visible = outer | own_names(graph)
    for inner in (inner for node in graph.node for inner in _graphs_of(node)):
        hiding = visible & own_names(inner)
        if hiding:
            prefix = f"{depth}@"
            _rename_all(inner, ChainMap({name: prefix + name for name in hiding}), prefix)
        separate_names(inner, visible, depth + 1)


def _rename(node: onnx.NodeProto, names: ChainMap[str, str], prefix: str) -> None:
    """Rename the values of a node and of its own graphs, whose values hide others of their name."""
    for values in (node.input, node.output):
        renamed = [names.get(value, value) for value in values]
        del values[:]
        values.extend(renamed)
    for graph in _graphs_of(node):
        own = {name: prefix + name for name in own_names(graph)}
        _rename_all(graph, names.new_child(own), prefix)


def _rename_all(graph: onnx.GraphProto, names: ChainMap[str, str], prefix: str) -> None:
    """Rename the values of a graph of a node."""
    for each in (*graph.input, *graph.initializer, *graph.value_info, *graph.output):
        each.name = names.get(each.name, each.name)
    for inner in graph.node:
        _rename(inner, names, prefix)


def _graphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    return (graph for item in node.attribute for graph in (item.g, *item.graphs))


def own_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the values that a graph defines."""
    own = {each.name for each in (*graph.input, *graph.initializer)}
    return own | {name for inner in graph.node for name in inner.output if name}
