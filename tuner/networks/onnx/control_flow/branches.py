"""Replacement of If nodes whose condition is constant by the branch that is taken."""

import onnx

from tuner.networks.onnx.control_flow.subgraphs import inline
from tuner.networks.onnx.foreign import is_foreign
from tuner.networks.onnx.graph import attribute, constant_readers, readers_of


def inline_constant_branches(model: onnx.ModelProto) -> int:
    """Inline the taken branch of every If with a constant condition, in place.

    Returns:
        Number of inlined branches; those inside other branches count too.
    """
    graph = model.graph
    constants = constant_readers(graph)
    pending = list(reversed(graph.node))
    nodes: list[onnx.NodeProto] = []
    n_inlined = 0
    while pending:
        node = pending.pop()
        is_branch = node.op_type == "If" and not is_foreign(node)
        if not is_branch or node.input[0] not in constants:
            nodes.append(node)
            continue
        taken = bool(constants[node.input[0]]().all())
        branch = attribute(node, "then_branch" if taken else "else_branch")
        inlined = inline(branch, f"{node.output[0]}_branch_")
        graph.initializer.extend(inlined.initialisers)
        constants |= readers_of(inlined.initialisers, inlined.nodes)
        results = [
            onnx.helper.make_node("Identity", [name], [output])
            for name, output in zip(inlined.outputs, node.output, strict=True)
        ]
        pending += reversed([*inlined.nodes, *results])
        n_inlined += 1
    if n_inlined:
        del graph.node[:]
        graph.node.extend(nodes)
    return n_inlined
