"""Copies of the graphs inside If, Loop and Scan nodes, as part of the graph around them."""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from tuner.networks.graph import nodes_within

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
    names = {**inputs, **{name: prefix + name for name in local}}
    initialisers, nodes = [], []
    for tensor in graph.initializer:
        weight = onnx.TensorProto()
        weight.CopyFrom(tensor)
        weight.name = prefix + tensor.name
        initialisers.append(weight)
    for inner in graph.node:
        node = onnx.NodeProto()
        node.CopyFrom(inner)
        _rename(node, names)
        nodes.append(node)
    return Inlined(nodes, initialisers, [names.get(out.name, out.name) for out in graph.output])


def _rename(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Rename the values of a node and, where they are read, in its own graphs."""
    graphs = [graph for item in node.attribute for graph in (item.g, *item.graphs)]
    for each in (node, *(inner for graph in graphs for inner in nodes_within(graph))):
        for values in (each.input, each.output):
            renamed = [names.get(value, value) for value in values]
            del values[:]
            values.extend(renamed)
    for graph in graphs:
        for output in graph.output:
            output.name = names.get(output.name, output.name)
