"""Replacement of branches that the data choose (If): both are computed, and one is selected.

Compilers fuse nothing in a graph with branches.
"""

import numpy as np
import onnx

from tuner.networks.onnx.control_flow.subgraphs import Inlined, inline
from tuner.networks.onnx.foreign import is_foreign
from tuner.networks.onnx.graph import attribute
from tuner.networks.onnx.inference import infer_shapes, without_weights
from tuner.networks.onnx.node_builder import NodeBuilder, Values, opset_of
from tuner.networks.onnx.opsets import convert

# Version since which the standard has Where.
_MIN_OPSET = 9
# Operand of each operator with which a branch that is not taken may stop the process, and a number
# that is harmless: divisors of integers, and indices.
_HAZARDS = {
    "Div": (1, 1),
    "Gather": (1, 0),
    "GatherElements": (1, 0),
    "GatherND": (1, 0),
    "Mod": (1, 1),
    "ScatterElements": (1, 0),
    "ScatterND": (1, 0),
}


def select_branches(model: onnx.ModelProto) -> int:
    """Replace every If of the main graph by both of its branches, in place.

    Args:
        model: Simplified model.

    Returns:
        Number of replaced nodes. A node stays if its branches have outputs of unknown or different
        shapes or types.
    """
    if not any(map(_is_branch, model.graph.node)):
        return 0
    if opset_of(model) < _MIN_OPSET:
        model.CopyFrom(convert(model, _MIN_OPSET))
        if opset_of(model) < _MIN_OPSET:
            return 0
    n_replaced = 0
    for node in [node for node in model.graph.node if _is_branch(node)]:
        nodes = _selection(model, node)
        if nodes:
            others = list(model.graph.node)
            index = others.index(node)
            del model.graph.node[:]
            model.graph.node.extend([*others[:index], *nodes, *others[index + 1 :]])
            n_replaced += 1
    return n_replaced


def _is_branch(node: onnx.NodeProto) -> bool:
    return node.op_type == "If" and not is_foreign(node)


def _selection(model: onnx.ModelProto, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return the nodes that replace an If; none if it stays."""
    branches = [
        inline(attribute(node, f"{key}_branch"), f"{node.output[0]}_{key}_")
        for key in ("then", "else")
    ]
    values = _values_within(model, node, branches)
    condition = node.input[0]
    if condition not in values.shapes or not _are_equal(branches, values):
        return []
    b = NodeBuilder(node, model.graph)
    if values.shapes[condition]:
        condition = b.add("Squeeze", condition)
    for branch, is_then in zip(branches, (True, False), strict=True):
        model.graph.initializer.extend(branch.initialisers)
        for each in branch.nodes:
            _guard(b, each, values, condition, is_then=is_then)
            b.nodes.append(each)
    for output, *pair in zip(node.output, *(each.outputs for each in branches), strict=True):
        if output:
            b.add("Where", condition, *pair, output=output)
    return b.nodes


def _values_within(model: onnx.ModelProto, node: onnx.NodeProto, branches: list[Inlined]) -> Values:
    """Return what is known about the values of both branches of a node."""
    part = without_weights(model)
    graph = part.graph
    del graph.node[list(graph.node).index(node) :]
    del graph.output[:]
    for branch in branches:
        graph.initializer.extend(branch.initialisers)
        graph.node.extend(branch.nodes)
    return Values.of(infer_shapes(part))


def _are_equal(branches: list[Inlined], values: Values) -> bool:
    """Return whether the outputs of both branches have the same fixed shapes and types."""
    pairs = list(zip(*(branch.outputs for branch in branches), strict=True))
    return all(
        each in values.shapes and each in values.dtypes for pair in pairs for each in pair
    ) and all(
        values.shapes[one] == values.shapes[other] and values.dtypes[one] == values.dtypes[other]
        for one, other in pairs
    )


def _guard(
    b: NodeBuilder, node: onnx.NodeProto, values: Values, condition: str, *, is_then: bool
) -> None:
    """Give a node a harmless operand for the case that its branch is not taken, in place."""
    index, number = _HAZARDS.get(node.op_type, (0, 0))
    if node.op_type not in _HAZARDS or is_foreign(node):
        return
    name = node.input[index]
    dtype = values.dtypes.get(name)
    if name in values.constants or dtype is None or dtype.kind not in "iu":
        return
    pair = [name, b.constant(np.array(number, dtype))]
    node.input[index] = b.add("Where", condition, *(pair if is_then else pair[::-1]))
