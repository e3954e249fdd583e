"""Axes and bounds of the first opsets that runtimes read, and others misread, in their usual form.

Before opset 11, the standard has negative axes for few operators, and its inference of shapes fails
on the others; importers overflow on bounds at the limits of int64.

Before version 7, the second operand lay along the axes of the first from the attribute ``axis`` on;
since then, operands are aligned at their last axes, which is all that importers know.
"""

from collections.abc import Callable

import onnx

from tuner.networks.onnx.foreign import is_foreign
from tuner.networks.onnx.graph import attribute
from tuner.networks.onnx.inference import infer_shapes
from tuner.networks.onnx.node_builder import Replacement, opset_of

_FIRST_NEGATIVE_AXES = 11
_FIRST_SLICE_OF_INPUTS = 10
_MAX_INT32 = 2**31 - 1
# Operators that lack negative axes; of most others they are read.
_OPERATORS = frozenset({"ArgMax", "ArgMin", "Concat", "Flatten", "Slice", "Squeeze", "Unsqueeze"})


def count_from_the_start(model: onnx.ModelProto) -> None:
    """Make axes and bounds of the main graph positive, in place, where shapes are known."""
    opset = opset_of(model)
    pending = [node for node in model.graph.node if _is_misread(node, opset)]
    # The shapes behind an operator are known when it is corrected.
    while pending:
        shapes = _shapes(model)
        known = [node for node in pending if node.input and node.input[0] in shapes]
        if not known:
            return
        for node in known:
            _correct(node, shapes[node.input[0]])
        pending = [node for node in pending if node not in known]


def _is_misread(node: onnx.NodeProto, opset: int) -> bool:
    if opset >= _FIRST_NEGATIVE_AXES or node.op_type not in _OPERATORS or is_foreign(node):
        return False
    if node.op_type != "Slice":
        return bool(min([attribute(node, "axis") or 0, *attribute(node, "axes", [])]) < 0)
    starts, ends, axes = (attribute(node, name) or [] for name in ("starts", "ends", "axes"))
    is_empty = any(start >= end for start, end in zip(starts, ends, strict=False))
    unusual = [n for n in (*starts, *ends, *axes) if not 0 <= n <= _MAX_INT32]
    return opset < _FIRST_SLICE_OF_INPUTS and (is_empty or bool(unusual))


def _shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all values whose rank is known; -1 for lengths that are not."""
    graph = infer_shapes(model).graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for info in (*graph.value_info, *graph.input):
        if info.type.tensor_type.HasField("shape"):
            dims = info.type.tensor_type.shape.dim
            shapes[info.name] = tuple(
                dim.dim_value if dim.HasField("dim_value") else -1 for dim in dims
            )
    return shapes


def _correct(node: onnx.NodeProto, shape: tuple[int, ...]) -> None:
    """Rewrite the axes of a node, and the bounds of a Slice, by the shape of its input."""
    rank = len(shape)
    axes = attribute(node, "axes")
    if node.op_type == "Unsqueeze":
        rank += len(axes)
    if axes is not None:
        _set(node, "axes", [axis + rank if -rank <= axis < 0 else axis for axis in axes])
    axis = attribute(node, "axis")
    if axis is not None and -rank <= axis < 0:
        _set(node, "axis", axis + rank)
    if node.op_type != "Slice":
        return
    starts, ends = (attribute(node, name) for name in ("starts", "ends"))
    axes = attribute(node, "axes", [*range(len(starts))])
    if not len(starts) == len(ends) == len(axes) or not all(0 <= each < rank for each in axes):
        return
    lengths = [shape[each] for each in axes]
    if min(lengths) >= 0:
        _set(node, "starts", [_bound(*each) for each in zip(starts, lengths, strict=True)])
        _set(node, "ends", [_bound(*each) for each in zip(ends, lengths, strict=True)])


def _bound(place: int, length: int) -> int:
    """Return a bound, perhaps counted from the end, as a place from 0 to the length."""
    return min(max(place + length if place < 0 else place, 0), length)


def _set(node: onnx.NodeProto, name: str, value: int | list[int]) -> None:
    (item,) = [item for item in node.attribute if item.name == name]
    item.CopyFrom(onnx.helper.make_attribute(name, value))


_ALIGNED_AT_THE_END = 7


def align_operand(b: Replacement) -> bool:
    """Append axes to the second operand of a node; return False if it is aligned without."""
    axis = b.attribute("axis")
    if b.opset >= _ALIGNED_AT_THE_END or axis is None or not b.attribute("broadcast", 0):
        return False
    first, second = b.shape(b.input(0)), b.shape(b.input(1))
    n_behind = len(first) - int(axis) % len(first) - len(second)
    if n_behind <= 0:
        return False
    axes = [len(second) + index for index in range(n_behind)]
    aligned = b.add("Unsqueeze", b.input(1), axes=axes)
    b.add(b.node.op_type, b.input(0), aligned, output=b.node.output[0], broadcast=1)
    return True


#: Replacements by the names of the operators that broadcast so.
BROADCASTS: dict[str, Callable[[Replacement], bool]] = dict.fromkeys(
    ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"),
    align_operand,
)
