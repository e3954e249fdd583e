"""Profile of a subgraph: its window, grouping, data type and memory traffic, from its TIR.

Both engines use it, on the TIR of their own TVM: the names of their classes tell nodes apart.
"""

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tuner.engines.base import WorkloadProfile

Node = Any

# Attributes with the children of statements and expressions; TVM 0.27 has no visitor in Python.
_CHILDREN = (
    *("block", "body", "seq", "then_case", "else_case"),
    *("value", "indices", "a", "b", "args", "condition", "true_value", "false_value"),
)
_BLOCKS = ("Block", "SBlock")
_LOADS = ("BufferLoad", "TensorLoad")
_REDUCE = 2  # tvm.tir.IterVar.CommReduce


def profile(function: Node, weight_indices: Collection[int] = ()) -> WorkloadProfile:
    """Profile a subgraph.

    The traffic is a lower bound: what a perfect kernel reads of each argument and writes, once.
    Of an argument with a gather, a slice or a stride it counts the elements that are used.

    Args:
        function: TIR of the subgraph.
        weight_indices: Positions of the arguments that are weights.
    """
    blocks = [_Block(node) for node in _below(function.body) if type(node).__name__ in _BLOCKS]
    blocks = [block for block in blocks if block.extents]
    # In TVM 0.27 a parameter is its buffer.
    buffers = getattr(function, "buffer_map", {})
    arguments = [buffers[each] if each in buffers else each for each in function.params]  # noqa: SIM401  not a dict
    reductions = [block for block in blocks if block.reduced]
    main = max(reductions, key=lambda block: block.n_iterations, default=None)
    output = arguments[-1] if main is None else main.written[0]
    written = [buffer for block in blocks for buffer in block.written]
    is_output = [any(argument.same_as(buffer) for buffer in written) for argument in arguments]
    outputs = [each for each, is_one in zip(arguments, is_output, strict=True) if is_one]
    inputs = [each for each, is_one in zip(arguments, is_output, strict=True) if not is_one]
    traffic = [_traffic(argument, blocks) for argument in arguments]
    return WorkloadProfile(
        window="" if main is None else _window(main),
        grouping="" if main is None else _grouping(main),
        dtype=str(output.dtype),
        n_bytes=sum(traffic),
        input_bytes=sum(map(_size, inputs)),
        output_bytes=sum(map(_size, outputs)),
        n_output_elements=sum(map(_n_elements, outputs)),
        operands="" if main is None else main.operands,
        weight_bytes=sum(traffic[index] for index in weight_indices),
    )


@dataclass(frozen=True)
class _Block:
    """A block of loops, with what it reads and writes."""

    node: Node

    @cached_property
    def extents(self) -> dict[str, int]:
        """Extents of its variables, by name."""
        return {str(axis.var.name): int(axis.dom.extent) for axis in self.node.iter_vars}

    @cached_property
    def reduced(self) -> set[str]:
        """Variables that it sums over."""
        axes = self.node.iter_vars
        return {str(axis.var.name) for axis in axes if int(axis.iter_type) == _REDUCE}

    @property
    def n_iterations(self) -> int:
        """Number of its iterations."""
        return math.prod(self.extents.values())

    @cached_property
    def written(self) -> list[Node]:
        """Buffers that it writes."""
        nodes = _below(self.node.body)
        return [node.buffer for node in nodes if type(node).__name__ == "BufferStore"]

    @cached_property
    def loads(self) -> list[tuple[Node, list[Node]]]:
        """Buffers that it reads and does not write, with their indices."""
        loads = [
            (node.source if hasattr(node, "source") else node.buffer, list(node.indices))
            for node in _below(self.node.body)
            if type(node).__name__ in _LOADS
        ]
        return [
            (buffer, indices)
            for buffer, indices in loads
            if not any(buffer.same_as(written) for written in self.written)
        ]

    @property
    def operands(self) -> str:
        """Data type of the factors that it adds up; empty unless they have one."""
        values = [n.value for n in _below(self.node.body) if type(n).__name__ == "BufferStore"]
        products = (
            term
            for value in values
            if type(value).__name__ == "Add"
            for term in (value.a, value.b)
            if type(term).__name__ == "Mul"
        )
        dtypes = {_dtype(_narrowest(each)) for term in products for each in (term.a, term.b)}
        return dtypes.pop() if len(dtypes) == 1 else ""


def _dtype(expr: Node) -> str:
    # In TVM 0.27 an expression has its data type in its type.
    typed: Any = getattr(expr, "ty", expr)
    return str(typed.dtype)


def _narrowest(expr: Node) -> Node:
    """Return an expression without conversions to a wider type of the same kind."""
    while type(expr).__name__ == "Cast":
        (before, n_bits), (after, n_wider) = map(_kind, (_dtype(expr.value), _dtype(expr)))
        if before != after or n_bits > n_wider:
            break
        expr = expr.value
    return expr


def _kind(dtype: str) -> tuple[str, int]:
    """Return the kind of a data type, the same for all floating-point types, and its bits."""
    kind, n_bits = re.findall(r"^b?(\D+)(\d*)", dtype)[0]
    return kind, int(n_bits or 1)


def _below(node: Node) -> Iterator[Node]:
    """Yield a statement or expression and everything in it, initial values of sums excepted."""
    yield node
    for name in _CHILDREN:
        child = getattr(node, name, None)
        if child is None or isinstance(child, str | int | float):
            continue
        for each in child if hasattr(child, "__len__") else (child,):
            yield from _below(each)


def _window(block: _Block) -> str:
    """Describe the window that a reduction slides over its input, such as ``3x3/2``.

    A dimension of the window is an index that adds a reduction variable to a spatial one; the
    factor of the spatial one is the stride, that of the other the dilation. Sizes of one are left
    out.
    """
    sizes, strides, dilations = [], [], []
    for index in (index for _, indices in block.loads for index in indices):
        factors = _factors(index)
        inner = [name for name in factors if name in block.reduced]
        outer = [name for name in factors if name not in block.reduced]
        if len(inner) == len(outer) == 1:
            size, stride = block.extents[inner[0]], factors[outer[0]]
            sizes += [size] if size > 1 else []
            strides += [stride] if size > 1 or stride > 1 else []
            dilations += [factors[inner[0]]] if size > 1 else []
    text = "x".join(map(str, sizes))
    for mark, values in (("/", strides), ("*", dilations)):
        if any(value != 1 for value in values):
            text += mark + "x".join(map(str, dict.fromkeys(values)))
    return text


def _grouping(block: _Block) -> str:
    """Return ``depthwise``, ``grouped`` or ``dense``; empty unless operands are multiplied."""
    if len({str(buffer.name) for buffer, _ in block.loads}) < 2:
        return ""
    indices = [index for _, indices in block.loads for index in indices]
    if any(type(node).__name__ == "FloorDiv" for index in indices for node in _below(index)):
        return "grouped"
    # Input channels are summed over, and no index adds them to another variable.
    slid = {name for index in indices if len(_factors(index)) > 1 for name in _factors(index)}
    is_dense = any(block.extents[name] > 1 for name in block.reduced - slid)
    return "dense" if is_dense else "depthwise"


def _factors(index: Node) -> dict[str, int]:
    """Return the factor of each variable of a sum, by name; other terms are left out."""
    kind = type(index).__name__
    if kind == "Var":
        return {str(index.name): 1}
    if kind == "Cast":
        return _factors(index.value)
    if kind in ("Add", "Sub"):
        return _factors(index.a) | _factors(index.b)
    if kind == "Mul" and type(index.b).__name__ == "IntImm":
        return {name: factor * int(index.b.value) for name, factor in _factors(index.a).items()}
    return {}


def _traffic(argument: Node, blocks: list[_Block]) -> int:
    """Return the bytes of an argument that any kernel must read or write."""
    shape = [int(size) for size in argument.shape]
    n_used = 0
    for block in blocks:
        if any(written.same_as(argument) for written in block.written):
            n_used += math.prod(shape)
        for buffer, indices in block.loads:
            if buffer.same_as(argument):
                n_used += _n_selected(indices, shape, block.extents)
    return min(n_used, math.prod(shape)) * _n_bytes(str(argument.dtype))


def _n_selected(indices: list[Node], shape: list[int], extents: dict[str, int]) -> int:
    """Count the elements that indices can select: per dimension, one per value of its variables."""
    n_selected = 1
    for index, size in zip(indices, shape, strict=True):
        nodes = _below(index)
        names = {str(node.name) for node in nodes if type(node).__name__ == "Var"} & extents.keys()
        n_selected *= min(size, math.prod(extents[name] for name in names))
    return n_selected


def _size(argument: Node) -> int:
    """Return the bytes of an argument."""
    return _n_elements(argument) * _n_bytes(str(argument.dtype))


def _n_elements(argument: Node) -> int:
    return math.prod(int(size) for size in argument.shape)


def _n_bytes(dtype: str) -> int:
    """Return the size of an element of a type such as ``float32``; at least one byte."""
    digits = "".join(char for char in dtype.partition("_")[0] if char.isdigit())
    return max(int(digits or 8) // 8, 1)
