"""Operators outside the standard that nothing has replaced: they are named and refused."""

from collections.abc import Iterable

import onnx

from tuner.errors import ModelError
from tuner.networks.onnx.graph import fixed_shapes

#: Names of the domain of the standard.
STANDARD_DOMAINS = ("", "ai.onnx")
_MAX_NAMED = 3
_REMEDIES = {
    "ai.onnx.ml": "convert the model to tensor operators, or export the part before them",
    "com.microsoft.nchwc": (
        "ONNX Runtime wrote the file for one kind of processor: save it at its optimisation level "
        "'extended' or below, or pass the file from before the optimisation"
    ),
}
_REMEDY = "replace them in the model, or export the model without them"


def is_foreign(node: onnx.NodeProto) -> bool:
    """Return whether a node is of another domain, where a standard name may mean anything."""
    return node.domain not in STANDARD_DOMAINS


def refusal(model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto]) -> ModelError:
    """Return the error for operators without a converter, with the shapes of their operands.

    Args:
        model: Model whose shapes are inferred here, if they can be.
        nodes: Its nodes of these operators; each operator is named once.
    """
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    # The binding raises errors of several types; shapes are only part of the message.
    except Exception:
        graph = model.graph
    shapes = fixed_shapes(graph)
    named: dict[str, str] = {}
    remedies: dict[str, str] = {}
    for node in nodes:
        named.setdefault(_full_name(node), _operands(node, shapes))
        remedies.setdefault(_full_name(node), _REMEDIES.get(node.domain, _REMEDY))
    listed = [f"{name} of {shown}" for name, shown in sorted(named.items())]
    more = f" and {len(listed) - _MAX_NAMED} more" if len(listed) > _MAX_NAMED else ""
    return ModelError(
        f"the model has operators without a converter: {', '.join(listed[:_MAX_NAMED])}{more}; "
        f"{remedies[min(remedies)]}",
        code="unsupported-operator",
    )


def _full_name(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else str(node.op_type)


def _operands(node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]]) -> str:
    """Return the shapes of the operands for people."""
    known = [shapes.get(name) for name in node.input if name]
    return ", ".join("?" if each is None else str(each) for each in known) or "no inputs"
