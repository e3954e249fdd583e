"""Replacement of n-ary sums by additions.

Importers stack the operands of ONNX's ``Sum`` and reduce the stack, which costs two copies and a
reduction, whereas an addition is fused into the convolution before it.
"""

import onnx


def replace_sums(model: onnx.ModelProto) -> int:
    """Replace every Sum of the main graph by Adds, in place; return the number replaced."""
    nodes: list[onnx.NodeProto] = []
    n_replaced = 0
    for node in model.graph.node:
        if node.op_type != "Sum" or node.domain not in {"", "ai.onnx"}:
            nodes.append(node)
            continue
        n_replaced += 1
        nodes.extend(_additions(node))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return n_replaced


def _additions(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    first, *others = node.input
    output = node.output[0]
    if not others:
        return [onnx.helper.make_node("Identity", [first], [output])]
    names = [f"{output}_partial_{i}" for i in range(len(others) - 1)] + [output]
    additions = []
    for operand, name in zip(others, names, strict=True):
        additions.append(onnx.helper.make_node("Add", [first, operand], [name]))
        first = name
    return additions
