"""Blocks of an unscheduled kernel: what computes each buffer, from which others."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import tvm
from tvm import tirx
from tvm.tirx import BufferStore, For, IndexMap, PrimFunc

_REDUCTION = 2


@dataclass(frozen=True)
class Axis:
    """An axis of a block.

    Attributes:
        extent: Number of its values, which begin at 0.
    """

    variable: Any
    extent: int


@dataclass(frozen=True)
class Block:
    """The computation of one buffer.

    Attributes:
        buffer: Buffer that it writes.
        indices: Indices that it writes, by its axes.
        value: Value that it writes.
        axes: Axes that are not summed over.
        reduced: Axes of a reduction; none for an elementwise block.
        init: First value of a reduction; None without one.
    """

    buffer: Any
    indices: tuple[Any, ...]
    value: Any
    axes: tuple[Axis, ...]
    reduced: tuple[Axis, ...] = ()
    init: Any = None

    @classmethod
    def of(cls, statement: Any) -> Self | None:
        """Return the block of a statement; None if it is not a full loop nest around one store."""
        n_iterations = 1
        while isinstance(statement, For):
            n_iterations *= int(statement.extent)
            statement = statement.body
        block: Any = getattr(statement, "block", None)
        store = getattr(block, "body", None)
        if not isinstance(store, BufferStore) or not _holds(statement.predicate):
            return None
        axes: list[Axis] = []
        reduced: list[Axis] = []
        for iterator in block.iter_vars:
            axis = Axis(iterator.var, int(iterator.dom.extent))
            (reduced if int(iterator.iter_type) == _REDUCTION else axes).append(axis)
        if n_iterations != math.prod(axis.extent for axis in (*axes, *reduced)):
            return None
        init = getattr(block.init, "value", None)
        return cls(
            store.buffer, tuple(store.indices), store.value, tuple(axes), tuple(reduced), init
        )

    def at(self, indices: Sequence[Any]) -> dict[int, Any] | None:
        """Return the values of the axes for an element of the buffer; None if they are unclear.

        Returns:
            Expressions by :func:`key` of the variable.
        """
        values: dict[int, Any] = {}
        keys = {key(axis.variable) for axis in self.axes}
        for written, index in zip(self.indices, indices, strict=True):
            if key(written) in keys:
                values[key(written)] = index
        for axis in self.axes:
            if axis.extent == 1:
                values.setdefault(key(axis.variable), zero_of(axis.variable))
        return values if keys == values.keys() else None


@dataclass(frozen=True)
class KernelBlocks:
    """The blocks of a kernel by the buffer that they write, and its arguments."""

    function: PrimFunc
    blocks: dict[int, Block]

    @classmethod
    def of(cls, function: PrimFunc) -> Self | None:
        """Return the blocks of a kernel; None if it has another form."""
        body = getattr(getattr(function.body, "block", None), "body", None)
        blocks: dict[int, Block] = {}
        for statement in getattr(body, "seq", [body]):
            block = Block.of(statement)
            if block is None or key(block.buffer) in blocks:
                return None
            blocks[key(block.buffer)] = block
        return cls(function, blocks)

    def reads(
        self, buffer: Any, expr: Any, values: dict[int, Any], variables: Sequence[Any]
    ) -> list[Any] | None:
        """Return the indices at which an expression, or what it follows from, reads a buffer.

        Args:
            buffer: Buffer that a block computes.
            expr: Expression of one element.
            values: Indices that its variables stand for, by key.

        Returns:
            The indices of the first element that it reads, elementwise; None if it reads none.
        """
        if hasattr(expr, "source") and hasattr(expr, "indices"):
            at = [substitute(each, values, variables) for each in expr.indices]
            if expr.source.same_as(buffer):
                return at
            block = self.blocks.get(key(expr.source))
            inner = block.at(at) if block is not None else None
            if block is None or inner is None or block.reduced:
                return None
            return self.reads(buffer, block.value, inner, [axis.variable for axis in block.axes])
        parts = (self.reads(buffer, child, values, variables) for child in children(expr))
        return next((part for part in parts if part is not None), None)

    @property
    def reductions(self) -> list[Block]:
        """Blocks that reduce."""
        return [block for block in self.blocks.values() if block.reduced]

    @property
    def outputs(self) -> list[Block]:
        """Blocks that write arguments of the kernel, in the order of the arguments."""
        written = (self.blocks.get(key(parameter)) for parameter in self.function.params)
        return [block for block in written if block is not None]


def key(variable: Any) -> int:
    """Return a key for a variable, whose ``==`` is an expression."""
    return hash(variable)


def substitute(expr: Any, values: dict[int, Any], variables: Sequence[Any]) -> Any:
    """Replace variables in an index."""
    replaced = [values[key(each)] for each in variables]
    return IndexMap(list(variables), [expr], None).map_indices(replaced)[0] if variables else expr


def children(node: Any) -> list[Any]:
    """Return the expressions that an expression consists of."""
    if hasattr(node, "source") and hasattr(node, "indices"):
        return list(node.indices)
    if isinstance(node, tvm.ir.Call):
        return list(node.args)
    names = ("a", "b", "value", "condition", "true_value", "false_value")
    parts = (getattr(node, name, None) for name in names)
    return [part for part in parts if hasattr(part, "ty")]


def buffers_of(expr: Any) -> list[Any]:
    """Return the buffers that an expression itself reads, outside of indices."""
    if hasattr(expr, "source") and hasattr(expr, "indices"):
        return [expr.source]
    return [buffer for child in children(expr) for buffer in buffers_of(child)]


def zero_of(variable: Any) -> Any:
    """Return zero in the type of a variable."""
    return tirx.const(0, str(variable.ty.dtype))


def _holds(predicate: Any) -> bool:
    return bool(getattr(predicate, "value", False))
