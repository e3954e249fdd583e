"""Plausible values of the inputs of an ONNX model, and the precision that it computes in."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from tuner.networks.base import PRECISIONS, ModelFacts, ValueRange
from tuner.networks.onnx.graph import Array, attribute, constant_readers, nodes_within

#: Operators that pass the values of their first input on.
_VIEWS = frozenset(
    [
        "Identity",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Transpose",
        "Expand",
        "Tile",
        "Slice",
        "Split",
        "Concat",
    ]
)
_COMPARISONS = frozenset(["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
_QUANTISED = frozenset(
    [
        "QuantizeLinear",
        "DynamicQuantizeLinear",
        "QLinearConv",
        "QLinearMatMul",
        "ConvInteger",
        "MatMulInteger",
    ]
)
# At least a tenth of the magnitude that exporters mask scores with.
_MASKING = -1e3

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


@dataclass
class Uses:
    """The operators that read an input, directly or through views.

    Attributes:
        rows: Numbers of rows that it selects from.
        limits: Constants that it is compared with.
        keeps: For each selection between scores and a masking constant, the value that keeps
            the scores.
        is_number: True if it is converted to a number or a boolean, or summed.
    """

    rows: list[int] = field(default_factory=list)
    limits: list[Array] = field(default_factory=list)
    keeps: list[bool] = field(default_factory=list)
    is_number: bool = False


def describe_onnx(model: onnx.ModelProto) -> ModelFacts:
    """Find the values that each input may take, by the operators that read it, and other facts.

    Args:
        model: Cleaned model, whose shapes are fixed and whose constants are folded.
    """
    graph = _Graph(model)
    ranges = {}
    for info in model.graph.input:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
        if dtype.kind in "iub":
            uses = Uses()
            graph.follow(info.name, uses)
            ranges[info.name] = range_of(dtype, uses)
    return ModelFacts(ranges, _precision(model), find_sigmoids(model))


def range_of(dtype: np.dtype[Any], uses: Uses) -> ValueRange:
    """Return the values of an input of whole numbers or booleans that operators read so."""
    if dtype.kind == "b":
        keep = int(uses.keeps[0]) if uses.keeps else 1
        return ValueRange(keep, keep, "keeps every element")
    if uses.rows:
        n_rows = max(min(uses.rows), 1)
        return ValueRange(0, n_rows - 1, f"indices of {n_rows} rows")
    if dtype.itemsize == 1:
        limits = np.iinfo(dtype)
        return ValueRange(int(limits.min), int(limits.max), f"every {dtype}")
    if uses.limits:
        length = max(_full(limit) for limit in uses.limits)
        return ValueRange(length, length, "full length" if length > 1 else "mask of ones")
    if uses.is_number:
        return ValueRange(1, 1, "mask of ones")
    return ValueRange(0, 1, "use unknown")


def _full(limit: Array) -> int:
    """Return the length that fills a mask: one more than the largest position compared with."""
    largest = int(limit.max()) if limit.size else 0
    return max(largest + 1 if limit.size > 1 else largest, 1)


class _Graph:
    """The nodes of a model by the values that they read, with its constants and shapes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._readers = defaultdict[str, list[tuple[onnx.NodeProto, int]]](list)
        for node in model.graph.node:
            for index, name in enumerate(node.input):
                self._readers[name].append((node, index))
        self._constants: Mapping[str, Callable[[], Array]] = constant_readers(model.graph)
        self._shapes = _shapes(model)

    def follow(
        self, name: str, uses: Uses, offset: int = 0, *, inverted: bool = False, depth: int = 0
    ) -> None:
        """Add the uses of a value, which is an input plus ``offset``, or negated."""
        if depth > 100:
            return
        for node, index in self._readers[name]:
            other = node.input[1 - index] if len(node.input) == 2 else ""
            if (n_rows := self._n_rows(node, index)) is not None:
                uses.rows.append(n_rows - offset)
            elif node.op_type in _COMPARISONS and other in self._constants:
                uses.limits.append(self._constants[other]())
            elif node.op_type == "Cast":
                uses.is_number = uses.is_number or not _is_integer(attribute(node, "to"))
            elif node.op_type == "ReduceSum" and index == 0:
                # The length of a sequence.
                uses.is_number = True
            # Note which value of a condition keeps the scores that a Where masks otherwise.
            if node.op_type == "Where" and index == 0:
                for branch in (1, 2):
                    reader = self._constants.get(node.input[branch])
                    if reader is not None and (reader() <= _MASKING).all():
                        uses.keeps.append((branch == 2) != inverted)
            shift = self._shift(node, index)
            if shift is not None:
                negated = inverted != bool(node.op_type == "Not")
                for output in node.output:
                    self.follow(output, uses, offset + shift, inverted=negated, depth=depth + 1)

    def _n_rows(self, node: onnx.NodeProto, index: int) -> int | None:
        """Return the number of rows that a node selects from, if this input is its index."""
        if index == 1 and node.op_type in {"Gather", "GatherElements"}:
            shape = self._shapes.get(node.input[0])
            return shape[attribute(node, "axis", 0)] if shape else None
        if index == 1 and node.op_type == "GatherND":
            return min(self._shapes.get(node.input[0], ()), default=None)
        if index == 0 and node.op_type == "OneHot" and node.input[1] in self._constants:
            return int(self._constants[node.input[1]]().reshape(-1)[0])
        return None

    def _shift(self, node: onnx.NodeProto, index: int) -> int | None:
        """Return the number that a node adds to the values it passes on; None for another node."""
        kind = node.op_type
        if kind in _VIEWS and (index == 0 or kind == "Concat"):
            return 0
        if kind in {"And", "Or"}:
            return 0
        if kind == "Not" or (kind == "Gather" and index == 0):
            return 0
        if kind == "Cast" and _is_integer(attribute(node, "to"), or_boolean=True):
            return 0
        if kind == "Add" and node.input[1 - index] in self._constants:
            added = self._constants[node.input[1 - index]]()
            return int(added.max()) if added.dtype.kind in "iu" and added.size else None
        return None


def _is_integer(code: int, *, or_boolean: bool = False) -> bool:
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code))
    return dtype.kind in ("iub" if or_boolean else "iu")


def _shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Return the known shapes of all values; of constants and inputs if inference fails."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    # The binding raises errors of several types, of models above 2 GB for example.
    except Exception:
        graph = model.graph
    for info in (*graph.input, *graph.value_info):
        dims = info.type.tensor_type.shape.dim
        if all(dim.dim_value > 0 for dim in dims):
            shapes[info.name] = tuple(dim.dim_value for dim in dims)
    return shapes


def _precision(model: onnx.ModelProto) -> str:
    if any(node.op_type in _QUANTISED for node in nodes_within(model.graph)):
        return PRECISIONS[-1]
    names = {str(onnx.helper.tensor_dtype_to_np_dtype(code)) for code in _float_codes(model)}
    return coarsest(names & set(PRECISIONS))


def coarsest(names: set[str]) -> str:
    """Return the coarsest of some precisions; float32 if there is none."""
    return max(names, key=PRECISIONS.index, default="float32")


def _float_codes(model: onnx.ModelProto) -> Iterator[int]:
    graph = model.graph
    for info in (*graph.input, *graph.output):
        yield info.type.tensor_type.elem_type
    for tensor in graph.initializer:
        yield tensor.data_type
    for node in graph.node:
        if node.op_type == "Cast":
            yield attribute(node, "to")
