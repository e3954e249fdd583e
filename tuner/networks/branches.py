"""Replacement of If nodes whose condition is constant by the branch that is taken."""

import onnx

from tuner.networks.graph import attribute, constant_readers, nodes_within


def inline_constant_branches(model: onnx.ModelProto) -> int:
    """Inline the taken branch of every If with a constant condition, in place.

    Returns:
        Number of inlined branches; those inside other branches count too.
    """
    n_inlined = 0
    while _inline_once(model.graph):
        n_inlined += 1
    return n_inlined


def _inline_once(graph: onnx.GraphProto) -> bool:
    constants = constant_readers(graph)
    for position, node in enumerate(graph.node):
        if node.op_type == "If" and node.domain == "" and node.input[0] in constants:
            taken = bool(constants[node.input[0]]().all())
            branch = attribute(node, "then_branch" if taken else "else_branch")
            rest = list(graph.node)
            nodes = _renamed(branch, node)
            graph.initializer.extend(_initialisers(branch, node))
            del graph.node[:]
            graph.node.extend([*rest[:position], *nodes, *rest[position + 1 :]])
            return True
    return False


def _initialisers(branch: onnx.GraphProto, node: onnx.NodeProto) -> list[onnx.TensorProto]:
    copies = []
    for tensor in branch.initializer:
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        copy.name = _prefix(node) + tensor.name
        copies.append(copy)
    return copies


def _renamed(branch: onnx.GraphProto, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return copies of a branch's nodes whose values have unique names, and its outputs."""
    local = {tensor.name for tensor in branch.initializer}
    local |= {name for inner in branch.node for name in inner.output if name}
    names = {name: _prefix(node) + name for name in local}
    nodes = []
    for inner in branch.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(inner)
        _rename(copy, names)
        nodes.append(copy)
    for result, output in zip(branch.output, node.output, strict=True):
        name = names.get(result.name, result.name)
        nodes.append(onnx.helper.make_node("Identity", [name], [output]))
    return nodes


def _rename(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Rename the values of a node and, where they are read, in its own branches."""
    graphs = [graph for item in node.attribute for graph in (item.g, *item.graphs)]
    for each in (node, *(inner for graph in graphs for inner in nodes_within(graph))):
        for values in (each.input, each.output):
            renamed = [names.get(value, value) for value in values]
            del values[:]
            values.extend(renamed)
    for graph in graphs:
        for output in graph.output:
            output.name = names.get(output.name, output.name)


def _prefix(node: onnx.NodeProto) -> str:
    return f"{node.output[0]}_branch_"
