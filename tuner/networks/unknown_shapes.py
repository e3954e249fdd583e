"""Reasons why the shape of an output is unknown: the operators behind it, and what they read."""

import numpy as np
import onnx
from onnx import TensorProto

from tuner.errors import ModelError
from tuner.networks.foreign import is_foreign
from tuner.networks.foreign import refusal as refuse_operators
from tuner.networks.graph import Array, constant_readers, fixed_shapes, reads_of

_MAX_NAMED = 3
#: Operators that choose among their operands: how many they keep depends on values.
CHOOSING = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})


def refusal(model: onnx.ModelProto, outputs: list[str]) -> ModelError:
    """Return the error for outputs without a fixed shape; it names where the shape is lost.

    Args:
        model: Simplified model with ``value_info`` of all shapes that could be inferred.
        outputs: Names of the outputs. The error is that of the first whose shape is lost before
            any operator chooses, since others can be split off.
    """
    output = min(outputs, key=lambda name: _is_chosen(model, name))
    if _is_empty(model.graph, output):
        return ModelError(
            f"output {output!r} has no elements: export the model without it", code="not-a-tensor"
        )
    lost = first_unknown(model, output)
    branches = [node for node in lost if node.op_type == "If"]
    if branches:
        return _branch_refusal(model.graph, output, branches[0])
    foreign = [node for node in lost if is_foreign(node)]
    if foreign:
        return refuse_operators(model, foreign)
    choosing = [node for node in lost if node.op_type in CHOOSING]
    if choosing:
        return _choice_refusal(model.graph, output, choosing[0])
    described = [_describe(model.graph, node) for node in lost[:_MAX_NAMED]]
    return ModelError(
        f"the shape of output {output!r} cannot be inferred from the inputs; operators without a "
        f"known shape: {', '.join(described) or 'none'}; make what their shapes depend on a "
        "constant, or export the model up to them",
        code="data-dependent-shape",
    )


def refuse_branches(model: onnx.ModelProto) -> None:
    """Refuse a model with branches (If) between which nothing can select.

    Raises:
        ModelError: If it has one; the message has the inputs that choose.
    """
    for node in model.graph.node:
        if node.op_type == "If":
            raise _branch_refusal(model.graph, node.output[0], node)


def _is_chosen(model: onnx.ModelProto, output: str) -> bool:
    return any(node.op_type in CHOOSING for node in first_unknown(model, output))


def _is_empty(graph: onnx.GraphProto, output: str) -> bool:
    """Return whether a dimension of an output was inferred to be 0."""
    (info,) = [info for info in graph.output if info.name == output]
    dims = info.type.tensor_type.shape.dim
    return any(dim.HasField("dim_value") and dim.dim_value == 0 for dim in dims)


def _choice_refusal(graph: onnx.GraphProto, output: str, node: onnx.NodeProto) -> ModelError:
    """Return the error for an operator that keeps as many elements as the data say."""
    constants = constant_readers(graph)
    operands = [repr(name) for name in node.input if name and name not in constants]
    return ModelError(
        f"the size of output {output!r} depends on the data, and nothing in front of "
        f"{node.op_type} can be compiled: run the model in another runtime, or export the part "
        f"that computes {', '.join(operands) or 'its operands'} with it",
        code="data-dependent-shape",
    )


def _branch_refusal(graph: onnx.GraphProto, output: str, branch: onnx.NodeProto) -> ModelError:
    """Return the error for an If whose branch is unknown; it suggests values of scalar inputs."""
    names = _inputs_behind(graph, branch.input[0])
    declared = {info.name: info for info in graph.input}
    are_scalars = bool(names) and all(
        all(dim.dim_value == 1 for dim in declared[name].type.tensor_type.shape.dim)
        for name in names
    )
    rows = [name for name in names if len(declared[name].type.tensor_type.shape.dim) == 1]
    flags = [
        name for name in names if declared[name].type.tensor_type.elem_type == TensorProto.BOOL
    ]
    rows = [name for name in rows if name not in flags]
    numbers = {name: "true" if name in flags else _compared_with(graph, name) for name in names}
    numbers |= {name: "NUMBER" for name in rows if numbers[name] == "1"}
    examples = " ".join(f"{name}={number}" for name, number in numbers.items())
    limit = f" (1 is read as the shape of {' and '.join(map(repr, rows))})" if rows else ""
    remedy = (
        f"fix it among the input shapes, for example {examples}{limit}"
        if are_scalars
        else "make the choice a constant of the model"
    )
    return ModelError(
        f"output {output!r} comes from a branch (If) that the model chooses by "
        f"{_named('its input', names)}: {remedy}, or export the branch alone",
        field="input" if are_scalars else None,
        code="data-dependent-shape",
    )


def _compared_with(graph: onnx.GraphProto, name: str) -> str:
    """Return a number that an input is compared with; ``NUMBER`` if there is none."""
    constants = constant_readers(graph)
    for node in graph.node:
        if node.op_type == "Equal" and name in node.input:
            for other in node.input:
                if other in constants and (number := _whole(constants[other]())) is not None:
                    return str(number)
    return "NUMBER"


def _whole(array: Array) -> int | None:
    """Return the first element of an array; None if it has none, or it is not a whole number."""
    if not array.size or array.dtype.kind not in "biuf":
        return None
    number = array.reshape(-1)[0]
    return int(number) if np.isfinite(number) and int(number) == number else None


def first_unknown(model: onnx.ModelProto, output: str) -> list[onnx.NodeProto]:
    """Return the nodes before an output that have no fixed shape although their operands do."""
    graph = model.graph
    producers = {name: node for node in graph.node for name in node.output}
    known = fixed_shapes(graph)
    seen: set[str] = set()
    first, pending = [], [output]
    while pending:
        node = producers.get(pending.pop())
        if node is None or not seen.isdisjoint(filter(None, node.output)):
            continue
        seen.update(filter(None, node.output))
        unknown = [name for name in node.input if name and name not in known]
        unknown = [name for name in unknown if name in producers]
        pending += unknown
        if not unknown:
            first.append(node)
    return first


def _describe(graph: onnx.GraphProto, node: onnx.NodeProto) -> str:
    names = sorted({name for each in node.input[1:] for name in _inputs_behind(graph, each)})
    return f"{node.op_type} (its shape depends on {_named('input', names)})"


def _named(kind: str, names: list[str]) -> str:
    return f"{kind} {' and '.join(map(repr, names))}" if names else "the data"


def _inputs_behind(graph: onnx.GraphProto, name: str) -> list[str]:
    """Return the names of the inputs that a value is computed from, shapes apart."""
    producers = {output: node for node in graph.node for output in node.output}
    inputs = {info.name for info in graph.input}
    names, seen, pending = set(), set(), [name]
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        names |= {value} & inputs
        node = producers.get(value)
        if node is not None and node.op_type not in ("Shape", "Size"):
            pending += reads_of(node)
    return sorted(names)
