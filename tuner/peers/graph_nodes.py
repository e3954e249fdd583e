"""Nodes of an ONNX model by number, so that what a peer runs can be traced back to them.

A peer fuses nodes and names the result after some of them, or after their outputs. So it gets a
copy of the model whose nodes and values are named by number, and any name that it makes up tells
which nodes it is about.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
import onnx.inliner

from tuner.peers.base import GraphNode

_LABEL = "tuner_node_{}_"
_PATTERN = re.compile(r"tuner_node_(\d+)_")


def read_graph(path: str) -> onnx.ModelProto:
    """Read a model with its functions inlined."""
    model = onnx.load(path)
    return onnx.inliner.inline_local_functions(model) if model.functions else model


def nodes_of(model: onnx.ModelProto) -> tuple[GraphNode, ...]:
    """Return the nodes of a graph, in order; one without a name is called after its output."""
    return tuple(
        GraphNode(
            name=node.name or next((name for name in node.output if name), node.op_type),
            operator=node.op_type,
            inputs=tuple(dict.fromkeys(_inputs(node))),
            outputs=tuple(name for name in node.output if name),
        )
        for node in model.graph.node
    )


def write_labelled(path: str, out: Path) -> None:
    """Write a copy of a model whose nodes and values are named by the numbers of its nodes."""
    model = read_graph(path)
    names = {
        name: f"{_LABEL.format(number)}{position}"
        for number, node in enumerate(model.graph.node)
        for position, name in enumerate(node.output)
        if name
    }
    for number, node in enumerate(model.graph.node):
        node.name = _LABEL.format(number)
        node.output[:] = [names.get(name, name) for name in node.output]
    _rename(model.graph, names)
    for info in model.graph.output:
        info.name = names.get(info.name, info.name)
    # Shapes of values under their former names.
    del model.graph.value_info[:]
    onnx.save(model, out)


def origins_in(*names: str) -> tuple[int, ...]:
    """Return the numbers of the nodes that names of a labelled model tell."""
    return tuple(sorted({int(number) for name in names for number in _PATTERN.findall(name)}))


def _inputs(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the values that a node and its subgraphs read from outside."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {info.name for info in graph.input} | {each.name for each in graph.initializer}
            for inner in graph.node:
                yield from (name for name in _inputs(inner) if name not in own)
                own.update(inner.output)


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename the values that nodes read, in subgraphs too; names are unique in a model."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, names)
                for info in inner.output:
                    info.name = names.get(info.name, info.name)


def graphs_within(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and the bodies of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from graphs_within(body)
