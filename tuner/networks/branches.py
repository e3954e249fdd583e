"""Replacement of If nodes whose condition is constant by the branch that is taken."""

import onnx

from tuner.networks.graph import attribute, constant_readers
from tuner.networks.subgraphs import inline


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
            inlined = inline(branch, f"{node.output[0]}_branch_")
            graph.initializer.extend(inlined.initialisers)
            results = [
                onnx.helper.make_node("Identity", [name], [output])
                for name, output in zip(inlined.outputs, node.output, strict=True)
            ]
            del graph.node[:]
            graph.node.extend([*rest[:position], *inlined.nodes, *results, *rest[position + 1 :]])
            return True
    return False
