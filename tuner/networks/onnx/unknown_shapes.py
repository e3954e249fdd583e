"""Reasons why the shape of an output is unknown: the operators behind it, and what they read."""

import re

import numpy as np
import onnx
from onnx import TensorProto

from tuner.errors import ModelError, plain_reason, summary
from tuner.networks.onnx.foreign import is_foreign
from tuner.networks.onnx.foreign import refusal as refuse_operators
from tuner.networks.onnx.functions import version_of
from tuner.networks.onnx.graph import Array, constant_readers, fixed_shapes, reads_of
from tuner.networks.onnx.node_builder import opset_of

_MAX_NAMED = 3
# Positions of the operands whose values are lengths, axes or places.
_LENGTHS = {
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
# Text of onnx before the reason of a failure.
_PREFIX = re.compile(r".*\[\w*InferenceError\]\s*|^\(op_type:[^)]*\):?\s*")
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
            f"output {output!r} has no elements: give the inputs other shapes, or export the model "
            "without it",
            code="not-a-tensor",
        )
    lost = first_unknown(model, output)
    branches = [node for node in lost if node.op_type == "If"]
    if branches:
        return _branch_refusal(model.graph, output, branches[0])
    opset = opset_of(model)
    foreign = [node for node in lost if not _is_standard(node, opset)]
    if foreign:
        return refuse_operators(model, foreign)
    choosing = [node for node in lost if node.op_type in CHOOSING]
    if choosing:
        return _choice_refusal(model.graph, output, choosing[0])
    if not any(_reads_lengths(model.graph, node) for node in lost):
        return _failed_inference(model, output, lost)
    described = [_describe(model.graph, node) for node in lost[:_MAX_NAMED]]
    return ModelError(
        f"the shape of output {output!r} cannot be inferred from the inputs; operators without a "
        f"known shape: {', '.join(described) or 'none'}; make what their shapes depend on a "
        "constant, or export the model up to them",
        code="data-dependent-shape",
    )


def _reads_lengths(graph: onnx.GraphProto, node: onnx.NodeProto) -> bool:
    """Return whether the shape of an operator depends on the values of operands it computes."""
    constants = constant_readers(graph)
    # Axes of a reduction have this place too.
    default = (1,) if node.op_type.startswith("Reduce") else ()
    places = _LENGTHS.get(node.op_type, default)
    read = [name for place, name in enumerate(node.input) if place in places]
    return any(name and name not in constants for name in read)


def refuse_failures(model: onnx.ModelProto) -> None:
    """Refuse operators of the main graph that lose a shape because their operands do not fit.

    Args:
        model: Model with ``value_info`` of all shapes that could be inferred.

    Raises:
        ModelError: If there is one, with the reason of onnx's inference.
    """
    known, opset = fixed_shapes(model.graph), opset_of(model)
    for node in model.graph.node:
        read, made = {*reads_of(node)}, {*filter(None, node.output)}
        is_lost = read <= known.keys() and not made <= known.keys()
        problem = is_lost and _has_inference(node, opset) and _inference_problem(model, node)
        if problem:
            raise ModelError(
                f"the shape of {node.output[0]!r} is unknown: onnx infers none for "
                f"{_with_operands(model, node)}{problem}; export the model with another opset, or "
                "without this operator",
                code="invalid-model",
            )


def _is_standard(node: onnx.NodeProto, opset: int) -> bool:
    return not is_foreign(node) and bool(version_of(node, opset))


def _has_inference(node: onnx.NodeProto, opset: int) -> bool:
    """Return whether onnx compares the operands of a node, and not by a body, which may fail."""
    return (
        len(node.input) > 1
        and _is_standard(node, opset)
        and bool(onnx.defs.get_schema(node.op_type, opset).has_type_and_shape_inference_function)
    )


def _failed_inference(
    model: onnx.ModelProto, output: str, lost: list[onnx.NodeProto]
) -> ModelError:
    """Return the error for an operator whose output shape onnx cannot infer, without a reason."""
    remedy = "declare it in the model"
    if lost:
        remedy = (
            f"onnx infers none for {_with_operands(model, lost[0])}; export the model with another "
            "opset, or without this operator"
        )
    return ModelError(f"the shape of output {output!r} is unknown: {remedy}", code="unknown")


def _with_operands(model: onnx.ModelProto, node: onnx.NodeProto) -> str:
    shapes = fixed_shapes(model.graph)
    known = [shapes.get(name) for name in node.input if name]
    operands = ", ".join("?" if shape is None else str(shape) for shape in known)
    name = f" {node.name!r}" if node.name else ""
    return f"{node.op_type}{name} of {operands or 'no inputs'}"


def _inference_problem(model: onnx.ModelProto, node: onnx.NodeProto) -> str:
    """Return ``: REASON`` for a node by itself; empty if onnx gives none."""
    graph = model.graph
    alone = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    alone.graph.name = "node"
    alone.graph.node.append(node)
    alone.graph.initializer.extend(t for t in graph.initializer if t.name in node.input)
    infos = (*graph.input, *graph.value_info, *graph.output)
    alone.graph.input.extend(info for info in infos if info.name in node.input)
    try:
        onnx.shape_inference.infer_shapes(alone, strict_mode=True, data_prop=True)
    except Exception as error:  # of several types
        text = _PREFIX.sub("", summary(error, last=True, max_chars=2000))
        reason = plain_reason(ValueError(text))
        return reason if reason.startswith(": ") else ""
    return ""


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
