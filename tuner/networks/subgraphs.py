"""Copies of the graphs inside If, Loop and Scan nodes, as part of the graph around them."""

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass

import onnx

_NO_NAMES: Mapping[str, str] = {}


@dataclass(frozen=True)
class Inlined:
    """Copy of a graph whose values have unique names.

    Attributes:
        nodes: Its nodes.
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


def _rename(node: onnx.NodeProto, names: ChainMap[str, str], prefix: str) -> None:
    """Rename the values of a node and of its own graphs, whose values hide others of their name."""
    for values in (node.input, node.output):
        renamed = [names.get(value, value) for value in values]
        del values[:]
        values.extend(renamed)
    for graph in (graph for item in node.attribute for graph in (item.g, *item.graphs)):
        own = {each.name for each in (*graph.input, *graph.initializer)}
        own |= {name for inner in graph.node for name in inner.output if name}
        visible = names.new_child({name: prefix + name for name in own})
        for each in (*graph.input, *graph.initializer, *graph.value_info, *graph.output):
            each.name = visible.get(each.name, each.name)
        for inner in graph.node:
            _rename(inner, visible, prefix)
