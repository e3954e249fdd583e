"""Contractions of a workload: products of matrices and convolutions, of any shape and layout.

A contraction sums products of two operands. Its axes are those of a product of matrices: rows are
the axes of the first operand alone, columns those of the second alone, steps those that are summed
over, and batches those of both. A convolution is a contraction whose steps are the taps of its
window and its channels.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import tvm
from tvm import tirx
from tvm.ir import Range
from tvm.sym import Analyzer
from tvm.tirx import PrimFunc, Var

from tuner.engines.relax.triton.expressions.kernel_blocks import (
    Axis,
    Block,
    KernelBlocks,
    children,
    key,
    substitute,
    zero_of,
)

_INDEX = "int64"
# Types of operands that tensor cores multiply, and of their sums.
# Unsigned bytes are multiplied as signed ones, less 128.
_SUMS = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "int8": "int32"}
_FLOATS = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Contraction:
    """The first reduction of a workload, as a product of matrices; others are along its rows.

    Attributes:
        operands: Its factors without the conversion to the type of the sums: that of the rows and
            that of the columns.
        dtype: Type of the operands.
        total: Type in which they are summed.
        batches: Axes of both operands.
        rows: Axes of the first operand.
        columns: Axes of the second operand.
        steps: Axes that are summed over.
        values: Variables of the block, by the variables of these axes.
        beside: Another product of as many rows and columns, whose sums the outputs need as well;
            None for one product.
        has_norm: True if rows of the sums are reduced, as normalisations do.
    """

    blocks: KernelBlocks
    block: Block
    operands: tuple[Any, Any]
    dtype: str
    total: str
    batches: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    steps: tuple[Axis, ...]
    values: dict[int, Any]
    beside: "Contraction | None" = None
    has_norm: bool = False

    @classmethod
    def find(cls, function: PrimFunc) -> Self | None:
        """Return the contraction of a workload.

        None unless it is the only reduction, or those that follow reduce rows of its sums, or one
        of two products with sums of the same elements.
        """
        blocks = KernelBlocks.of(function)
        if blocks is None or not blocks.reductions:
            return None
        first, *others = blocks.reductions
        product = cls.of(blocks, first)
        last = cls.of(blocks, others[0]) if len(others) == 1 else None
        if product is not None and last is not None and last.sizes == product.sizes:
            return replace(last, beside=product)
        sizes = {(extent_of(each.axes), extent_of(each.reduced)) for each in others}
        if product is None or not sizes <= {
            (product.n_batches * product.n_rows, product.n_columns)
        }:
            return None
        return replace(product, has_norm=bool(others))

    @classmethod
    def of(cls, blocks: KernelBlocks, block: Block) -> Self | None:
        """Return a reduction as a contraction; None if it is something else."""
        factors = factors_of(block)
        if factors is None:
            return None
        operands = tuple(without_widening(each) for each in factors)
        dtypes = {str(each.ty.dtype) for each in operands}
        if dtypes == {"uint8", "int8"}:
            dtypes = {"int8"}
        dtype = dtypes.pop()
        sums = str(block.buffer.dtype)
        if dtypes or dtype not in _SUMS or (sums in _FLOATS) != (dtype in _FLOATS):
            return None
        return cls._divided(blocks, block, (operands[0], operands[1]), dtype)

    @classmethod
    def _divided(
        cls, blocks: KernelBlocks, block: Block, operands: tuple[Any, Any], dtype: str
    ) -> Self | None:
        """Sort the axes of a reduction by the operands that read them."""
        values: dict[int, Any] = {}
        axes: list[Axis] = []
        for axis in (*block.axes, *block.reduced):
            parts = parts_of(axis, operands, is_summed=axis in block.reduced)
            axes += [part for part in parts if part.extent > 1]
            values[key(axis.variable)] = joined(parts)
        variables = [axis.variable for axis in (*block.axes, *block.reduced)]
        read = [_variables(each, values, variables, axes) for each in operands]
        summed = {
            key(part) for axis in block.reduced for part in variables_of(values[key(axis.variable)])
        }
        sorts: dict[tuple[bool, bool], list[Axis]] = {}
        steps = []
        for axis in axes:
            is_read = (key(axis.variable) in read[0], key(axis.variable) in read[1])
            if key(axis.variable) in summed:
                if is_read != (True, True):
                    return None
                steps.append(axis)
            else:
                sorts.setdefault(is_read, []).append(axis)
        if not steps or (False, False) in sorts:
            return None
        rows, columns = sorts.get((True, False), []), sorts.get((False, True), [])
        # Rows of the output are stored column by column.
        order = {key(axis.variable): place for place, axis in enumerate(axes)}
        last = [
            max((order[key(axis.variable)] for axis in some), default=-1)
            for some in (rows, columns)
        ]
        if last[0] > last[1]:
            rows, columns = columns, rows
            operands = operands[::-1]
        return cls(
            blocks, block, operands, dtype, _SUMS[dtype],
            tuple(sorts.get((True, True), [])), tuple(rows), tuple(columns), tuple(steps), values,
        )  # fmt: skip

    @property
    def unsigned(self) -> int | None:
        """Number of the operand that is unsigned; None if none is."""
        dtypes = [str(each.ty.dtype) for each in self.operands]
        return dtypes.index("uint8") if "uint8" in dtypes else None

    @property
    def variables(self) -> list[Any]:
        """Variables of the reduction."""
        return [axis.variable for axis in (*self.block.axes, *self.block.reduced)]

    @property
    def products(self) -> list[tuple["Contraction", str]]:
        """The products in the order of their loops, with the names of their sums."""
        beside = [] if self.beside is None else [(self.beside, "beside")]
        return [*beside, (self, "acc")]

    @property
    def sizes(self) -> tuple[int, int, int, str, str]:
        """Batches, rows and columns, and types of operands and sums."""
        return self.n_batches, self.n_rows, self.n_columns, self.dtype, self.total

    @property
    def n_batches(self) -> int:
        """Number of products."""
        return extent_of(self.batches)

    @property
    def n_rows(self) -> int:
        """Rows of each product."""
        return extent_of(self.rows)

    @property
    def n_columns(self) -> int:
        """Columns of each product."""
        return extent_of(self.columns)

    @property
    def n_steps(self) -> int:
        """Products of numbers that each element sums."""
        return extent_of(self.steps)

    @property
    def flop(self) -> float:
        """Floating-point operations."""
        n_steps = sum(each.n_steps for each, _ in self.products)
        return 2.0 * self.n_batches * self.n_rows * self.n_columns * n_steps

    @property
    def n_functions(self) -> int:
        """Calls of functions such as ``erf`` after the products, for each element of a tile."""
        if self.has_norm:
            return 0  # another kernel calls them
        blocks = [each for each in self.blocks.blocks.values() if not each.reduced]
        return sum(_n_calls(each.value) for each in blocks)

    @property
    def stores_batches(self) -> bool:
        """True if neighbours in the output are of different products: of no use to tensor cores."""
        extents = {key(axis.variable): axis.extent for axis in self.block.axes}
        fastest = next(
            (e for e in reversed(self.block.indices) if extents.get(key(e), 2) > 1), None
        )
        if fastest is None:
            return False
        keys = {key(each) for each in variables_of(self.values.get(key(fastest), fastest))}
        inner = {key(axis.variable) for axis in (*self.rows, *self.columns)}
        return bool(self.batches) and not keys & inner

    def elements(self, batch: Any, row: Any, column: Any) -> dict[int, Any]:
        """Return the axes of batches, rows and columns for their numbers, by key."""
        return {
            **split(self.batches, batch),
            **split(self.rows, row),
            **split(self.columns, column),
        }

    def resolved(self, values: dict[int, Any]) -> dict[int, Any]:
        """Return the variables of the reduction, given values of the axes; absent ones are 0."""
        resolved = {}
        for variable in self.variables:
            value = self.values[key(variable)]
            inner = variables_of(value)
            known = {key(each): values.get(key(each), zero_of(each)) for each in inner}
            resolved[key(variable)] = substitute(value, known, inner)
        return resolved


def extent_of(axes: Iterable[Axis]) -> int:
    """Return the number of points of some axes."""
    return math.prod(axis.extent for axis in axes)


def split(axes: Sequence[Axis], number: Any) -> dict[int, Any]:
    """Return the values of some axes for the number of a point; the last axis varies fastest."""
    values = {}
    stride = 1
    for position, axis in reversed(list(enumerate(axes))):
        value = number if stride == 1 else number // tirx.const(stride, _INDEX)
        values[key(axis.variable)] = value % tirx.const(axis.extent, _INDEX) if position else value
        stride *= axis.extent
    return values


def factors_of(block: Block) -> tuple[Any, Any] | None:
    """Return what a block multiplies and adds; None if it computes something else."""
    total = block.value
    if not isinstance(total, tirx.Add) or float(getattr(block.init, "value", 1.0)) != 0.0:
        return None
    for added, product in ((total.a, total.b), (total.b, total.a)):
        is_sum = hasattr(added, "source") and added.source.same_as(block.buffer)
        if is_sum and isinstance(product, tirx.Mul):
            return product.a, product.b
    return None


def _n_calls(expr: Any) -> int:
    is_call = isinstance(expr, tvm.ir.Call) and not str(expr.op.name).endswith("if_then_else")
    return is_call + sum(map(_n_calls, children(expr)))


def without_widening(expr: Any) -> Any:
    """Strip conversions to a type that holds every number of the type before."""
    while isinstance(expr, tirx.Cast):
        before, after = str(expr.value.ty.dtype), str(expr.ty.dtype)
        is_wider = (before in _FLOATS[:2] and after == "float32") or (before, after) in (
            ("int8", "int16"), ("int8", "int32"), ("int16", "int32"), ("uint8", "int32"),
        )  # fmt: skip
        if not is_wider:
            break
        expr = expr.value
    return expr


def parts_of(axis: Axis, operands: Sequence[Any], *, is_summed: bool = False) -> list[Axis]:
    """Split an axis that expressions read divided by a number, as the groups of channels.

    Blocks of steps stay together unless they are long: turns of a loop would have few of them.
    """
    divisors = sorted({d for each in operands for d in _divisors(each, axis.variable)})
    for divisor in reversed(divisors) if is_summed else divisors:
        is_short = is_summed and divisor * divisor < axis.extent
        if 1 < divisor < axis.extent and axis.extent % divisor == 0 and not is_short:
            name = str(axis.variable.name)
            return [
                Axis(Var(f"{name}_outer", _INDEX), axis.extent // divisor),
                Axis(Var(f"{name}_inner", _INDEX), divisor),
            ]
    return [axis]


def joined(parts: Sequence[Axis]) -> Any:
    """Return an axis by the variables of its parts."""
    if len(parts) == 1:
        (part,) = parts
        return part.variable if part.extent > 1 else zero_of(part.variable)
    outer, inner = parts
    return outer.variable * tirx.const(inner.extent, _INDEX) + inner.variable


def _divisors(expr: Any, variable: Any) -> set[int]:
    divisors: set[int] = set()

    def visit(node: Any) -> None:
        if isinstance(node, tirx.FloorDiv) and key(node.a) == key(variable):
            divisors.add(int(node.b.value))
        for child in children(node):
            visit(child)

    visit(expr)
    return divisors


def _variables(
    expr: Any, values: dict[int, Any], variables: Sequence[Any], axes: Sequence[Axis]
) -> set[int]:
    """Return the keys of the variables of axes that an operand reads."""
    analyzer = Analyzer()
    for axis in axes:
        ends = (tirx.const(end, _INDEX) for end in (0, axis.extent))
        analyzer.bind(axis.variable, Range(*ends))
    keys: set[int] = set()

    def visit(node: Any) -> None:
        if hasattr(node, "source") and hasattr(node, "indices"):
            for index in node.indices:
                replaced = analyzer.simplify(substitute(index, values, variables))
                keys.update(key(each) for each in variables_of(replaced))
            return
        if isinstance(node, Var):
            keys.update(key(each) for each in variables_of(values[key(node)]))
        for child in children(node):
            visit(child)

    visit(expr)
    return keys


def variables_of(expr: Any) -> list[Any]:
    """Return the variables of an index."""
    if isinstance(expr, Var):
        return [expr]
    variables: dict[int, Any] = {}
    for child in children(expr):
        variables.update({key(each): each for each in variables_of(child)})
    return list(variables.values())
