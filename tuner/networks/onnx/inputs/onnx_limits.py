"""Limits of the inputs of an ONNX model, and the refusal of constants beyond them."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tuner.library.limits import InputLimit
from tuner.networks.onnx.graph import Array, attribute
from tuner.networks.onnx.inputs.value_limits import (
    MAX_SIZE,
    OTHER,
    Elements,
    Use,
    by_column,
    check_constant,
    merged,
)
from tuner.networks.onnx.node_builder import Values

# Uses of an operand, by elements or names of elements of the same shape.
_Divide = Callable[[Array], Iterator[tuple[Use, Array]]]
# Positions of the operands that are read so.
_Operands = Iterator[tuple[int, _Divide]]
_Read = Callable[[onnx.NodeProto, Values], _Operands]
#: Operators that move the elements of their first operand; the others have to be constant.
_MOVES = frozenset(
    {
        *("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Cast"),
        *("Expand", "Tile", "Slice", "Split", "Gather", "GatherElements", "GatherND"),
    }
)


def find_limits(model: onnx.ModelProto) -> tuple[InputLimit, ...]:
    """Return the limits of inputs that operators of a model take as indices and divisors.

    Args:
        model: Model with fixed input shapes; its ``value_info`` tells other shapes.

    Raises:
        ModelError: If a constant is outside of an axis, or a constant divisor of whole numbers 0.
    """
    graph = model.graph
    nodes = [node for node in graph.node if node.op_type in _READERS]
    if not nodes:
        return ()
    values = Values.of(model)
    names = [info.name for info in graph.input if _is_integer(info.name, values)]
    elements = Elements({name: values.shapes[name] for name in names if name in values.shapes})
    moved = _Moved(graph, values, elements)
    limits: list[InputLimit] = []
    for node in nodes:
        for operand, divide in _READERS[node.op_type](node, values):
            name = node.input[operand] if len(node.input) > operand else ""
            if name in values.constants:
                for use, numbers in divide(values.constants[name]()):
                    check_constant(use, numbers)
            elif name and (moved_names := moved.of(name)) is not None:
                for use, some in divide(moved_names):
                    limits += elements.limits(use, some)
    return merged(limits)


class _Moved:
    """Names of the elements that operators move, by the value that they become part of."""

    def __init__(self, graph: onnx.GraphProto, values: Values, elements: Elements) -> None:
        self._values = values
        self._elements = elements
        self._makers = {name: node for node in graph.node for name in node.output if name}
        self._names: dict[str, Array | None] = {}
        for info in graph.input:
            if _is_integer(info.name, values) and info.name in values.shapes:
                self._names[info.name] = elements.of(info.name)

    def of(self, name: str) -> Array | None:
        """Return the names of the elements of a value; None if all are computed."""
        waiting = [name]
        while waiting:
            current = waiting[-1]
            if current in self._names:
                waiting.pop()
                continue
            sources = self._sources(current)
            missing = [each for each in sources if each not in self._names]
            if missing:
                waiting += missing
                continue
            self._names[waiting.pop()] = self._move(current, sources) if sources else None
        return self._names[name]

    def _sources(self, name: str) -> list[str]:
        """Return the operands whose elements an operator moves; none if it computes."""
        node = self._makers.get(name)
        if node is None or not _is_integer(name, self._values):
            return []
        constants = self._values.constants
        if node.op_type == "Concat":
            return [each for each in node.input if each not in constants]
        if node.op_type == "Where":
            return [] if self._added_length(node) is None else [node.input[2]]
        if node.op_type in _MOVES and all(each in constants for each in node.input[1:] if each):
            return [*node.input[:1]]
        return []

    def _added_length(self, node: onnx.NodeProto) -> int | None:
        """Return the length that a Where adds to negative indices; None if it does not.

        Exporters write it in front of operators that count from the end themselves.
        """
        condition, total = (self._makers.get(each) for each in node.input[:2])
        index, shapes = node.input[2], self._values.shapes
        if condition is None or (condition.op_type, condition.input[0]) != ("Less", index):
            return None
        if total is None or total.op_type != "Add" or index not in total.input:
            return None
        added = total.input[total.input[0] == index]
        zero, length = (self._constant(each) for each in (condition.input[1], added))
        if zero is None or zero.any() or length is None or len(np.unique(length)) != 1:
            return None
        is_same_shape = index in shapes and shapes[index] == shapes.get(node.output[0])
        return int(length.flat[0]) if is_same_shape else None

    def _constant(self, name: str) -> Array | None:
        return self._values.constants[name]() if name in self._values.constants else None

    def _move(self, name: str, sources: list[str]) -> Array | None:
        node = self._makers[name]
        if all(self._names[each] is None for each in sources):
            return None
        names = self._names[sources[0]]
        if node.op_type == "Cast":
            return names
        length = self._added_length(node) if node.op_type == "Where" else None
        if length is not None and names is not None:
            return self._elements.wrapped(names, length)
        moves_all = node.op_type == "Concat"
        feeds = {each: self._operand(each, moves_all) for each in node.input if each}
        if any(each is None or each.size > MAX_SIZE for each in feeds.values()):
            return None
        model = helper.make_model(
            helper.make_graph(
                [node],
                "move",
                [helper.make_value_info(each, onnx.TypeProto()) for each in feeds],
                [helper.make_value_info(each, onnx.TypeProto()) for each in node.output],
            ),
            opset_imports=[helper.make_opsetid("", self._values.opset)],
        )
        results = ReferenceEvaluator(model).run(None, feeds)
        return np.asarray(results[[*node.output].index(name)])

    def _operand(self, name: str, is_moved: bool) -> Array | None:
        """Return the names of the elements of an operand, or the constant that tells where to."""
        names = self._names.get(name)
        if names is not None:
            return names
        if not is_moved and (constant := self._constant(name)) is not None:
            return constant
        shape = self._values.shapes.get(name)
        return None if shape is None else np.full(shape, OTHER)


def _index(operand: int, *, wraps: bool = True) -> _Read:
    """Return the reader of an operand that indexes the axis of the first one."""

    def read(node: onnx.NodeProto, values: Values) -> _Operands:
        yield (
            operand,
            _whole(
                node, _size(values, node.input[0], int(attribute(node, "axis", 0))), wraps=wraps
            ),
        )

    return read


def _lengths(operand: int, axis_of: Callable[[onnx.NodeProto], int]) -> _Read:
    """Return the reader of lengths, from 0 to that of an axis of the first operand."""

    def read(node: onnx.NodeProto, values: Values) -> _Operands:
        size = _size(values, node.input[0], axis_of(node))
        yield operand, _whole(node, size + 1 if size else None, wraps=False)

    return read


def _rows(*tables: tuple[int, int]) -> _Read:
    """Return the reader of operands that are rows, from the start, of tables: pairs of both."""

    def read(node: onnx.NodeProto, values: Values) -> _Operands:
        for operand, table in tables:
            if len(node.input) > operand:
                size = _size(values, node.input[table], 0)
                yield operand, _whole(node, size, wraps=False)

    return read


def _columns(node: onnx.NodeProto, values: Values) -> _Operands:
    """Read rows of indices of several axes."""
    shape = values.shapes.get(node.input[0], ())[attribute(node, "batch_dims", 0) :]
    yield 1, lambda numbers: by_column(_reader(node), shape, numbers)


def _divisors(node: onnx.NodeProto, values: Values) -> _Operands:
    if _is_integer(node.input[1], values):
        yield 1, lambda numbers: iter([(Use(_reader(node)), numbers)])


def _unpooled(node: onnx.NodeProto, values: Values) -> _Operands:
    shape = values.shapes.get(node.output[0])
    yield 1, _whole(node, None if shape is None else int(np.prod(shape)), wraps=False)


def _rotations(node: onnx.NodeProto, values: Values) -> _Operands:
    """Read the places of ONNX Runtime's RotaryEmbedding, or that of the first row alone."""
    if not node.domain:
        return
    size, shape = _size(values, node.input[2], 0), values.shapes.get(node.input[0])
    if size and shape and values.shapes.get(node.input[1]) != (shape[0], shape[-2]):
        size -= shape[-2] - 1
    yield 1, _whole(node, size, wraps=False)


def _whole(node: onnx.NodeProto, size: int | None, *, wraps: bool) -> _Divide:
    """Return the division of an operand into one use, or none if the size is unknown."""

    def divide(numbers: Array) -> Iterator[tuple[Use, Array]]:
        if size is not None:
            yield Use(_reader(node), -size if wraps else 0, size - 1), numbers

    return divide


def _size(values: Values, name: str, axis: int) -> int | None:
    shape = values.shapes.get(name)
    return None if shape is None else shape[axis]


def _reader(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node.name}" if node.name else node.op_type


def _is_integer(name: str, values: Values) -> bool:
    dtype = values.dtypes.get(name)
    return dtype is not None and np.dtype(dtype).kind in "iu"


def _time_axis(node: onnx.NodeProto) -> int:
    return 1 if attribute(node, "layout", 0) else 0


#: Operators that take whole numbers as indices, lengths or divisors.
_READERS: Mapping[str, _Read] = {
    "Div": _divisors,
    "EmbedLayerNormalization": _rows((0, 2), (1, 4), (8, 3)),
    "Gather": _index(1),
    "GatherElements": _index(1),
    "GatherND": _columns,
    "GRU": _lengths(4, _time_axis),
    "LSTM": _lengths(4, _time_axis),
    "MaxUnpool": _unpooled,
    "Mod": _divisors,
    "RNN": _lengths(4, _time_axis),
    "ReverseSequence": _lengths(1, lambda node: int(attribute(node, "time_axis", 0))),
    "RoiAlign": _rows((2, 0)),
    "RotaryEmbedding": _rotations,
    "Scatter": _index(1),
    "ScatterElements": _index(1),
    "ScatterND": _columns,
}
