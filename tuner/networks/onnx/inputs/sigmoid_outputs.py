"""Outputs of an ONNX model that a Sigmoid computes, which peers round to a share of one."""

import onnx

# Operators that pass on elements of their first input; Concat, of all of them.
_SELECTIONS = frozenset(
    [
        "Cast",
        "Concat",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "MaxPool",
        "ReduceMax",
        "ReduceMin",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "TopK",
        "Transpose",
        "Unsqueeze",
    ]
)


def find_sigmoids(model: onnx.ModelProto) -> frozenset[int]:
    """Return the positions of the outputs that have elements of a Sigmoid, as it computed them."""
    makers = {name: node for node in model.graph.node for name in node.output}
    return frozenset(
        position
        for position, output in enumerate(model.graph.output)
        if _is_sigmoid(output.name, makers)
    )


def _is_sigmoid(name: str, makers: dict[str, onnx.NodeProto]) -> bool:
    waiting, seen = [name], set[str]()
    while waiting:
        current = waiting.pop()
        node = makers.get(current)
        if node is None or current in seen:
            continue
        seen.add(current)
        if node.op_type == "Sigmoid":
            return True
        if node.op_type in _SELECTIONS:
            waiting.extend(node.input if node.op_type == "Concat" else node.input[:1])
    return False
