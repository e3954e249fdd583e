"""Guards of kernels against the values of their inputs: no index leaves a tensor, no divisor is 0.

What a caller passes is checked before a call. Indices that the network computes are bounded here:
a read outside of an axis is one of its last position, a write there is dropped. A quotient and a
remainder by 0 are 0, and a shift by the width of a type and more moves all bits out.

Bounds compare unsigned numbers. LLVM takes signed sums for free of overflow, so that it would drop
a maximum of 0 and a sum whose operands are positive.
"""

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock
from tvm.tirx import AttrStmt, For, PrimFunc

from tuner.engines.relax.ir.rebuilt import rebuilt_block, with_body, with_kernels
from tuner.engines.relax.ir.tensor_types import is_number

Nodes = Sequence[Any]


def guard_kernels(module: tvm.IRModule) -> tvm.IRModule:
    """Return a module with guards in all kernels; guarded kernels do not change."""
    return with_kernels(module, _guarded)


def _guarded(function: PrimFunc) -> PrimFunc:
    sizes = (size for each in function.params for size in getattr(each, "shape", ()))
    if not all(map(is_number, sizes)):  # a network with others is refused
        return function
    guard = _Guard(function)
    callbacks = [
        (ir.TensorLoad, guard.load),
        (tirx.BufferStore, guard.store),
        (tirx.IfThenElse, _once),
        (SBlock, guard.block),
        ((tirx.Div, tirx.FloorDiv), guard.quotient),
        ((tirx.Mod, tirx.FloorMod), guard.remainder),
        ((tirx.LShift, tirx.RShift), guard.shift),
    ]
    return with_body(function, tvm_ffi.structural_map(function.body, callbacks))


def is_inside(index: Any, size: int) -> Any:
    """Return the condition that an index lies inside an axis.

    TVM's simplifications of unsigned comparisons are wrong, except for those with ``==``.
    """
    # A division costs more than the write of a scatter, whose flat position needs none.
    while (
        isinstance(index, tirx.FloorDiv) and isinstance(index.b, tirx.IntImm) and int(index.b) > 0
    ):
        index, size = index.a, size * int(index.b)
    return tirx.EQ(_bounded(index, size), index)


class _Guard:
    """Rewriting of the nodes of one kernel, inner ones first."""

    def __init__(self, function: PrimFunc) -> None:
        # Variables of loops, axes and threads, which stay within their extents.
        self._counters: set[Any] = set()
        visits = [(AttrStmt, self._add_thread), (For, self._add_loop), (SBlock, self._add_axes)]
        tvm_ffi.structural_walk(function.body, visits, order="pre")

    def load(self, load: Any) -> Any:
        """Bound the indices of a read."""
        bounded = [
            _bounded(index, int(size)) if self._may_leave(index, int(size)) else index
            for index, size in zip(load.indices, load.source.shape, strict=True)
        ]
        return tirx.BufferLoad(load.source, bounded) if _differ(bounded, load.indices) else load

    def store(self, store: Any) -> Any:
        """Drop a write outside of its tensor."""
        inside = [
            is_inside(index, int(size))
            for index, size in zip(store.indices, store.buffer.shape, strict=True)
            if self._may_leave(index, int(size))
        ]
        return tirx.IfThenElse(tirx.all(*inside), store, None) if inside else store

    def block(self, block: SBlock) -> SBlock:
        """Bound the regions that a block declares, as its accesses are."""
        reads, writes = ([*map(self._region, regions)] for regions in (block.reads, block.writes))
        if not _differ(reads, block.reads) and not _differ(writes, block.writes):
            return block
        return rebuilt_block(block, reads=reads, writes=writes)

    def quotient(self, node: Any) -> Any:
        """Define a quotient by 0, and that of the lowest number by -1, which overflows."""
        if not self._may_fail(node):
            return node
        zero = tirx.const(0, _dtype(node))
        result = type(node)(node.a, _divisor(node.b))
        if _is_signed(node):
            result = tirx.Select(_equals(node.b, -1), zero - node.a, result)
        return tirx.Select(_equals(node.b, 0), zero, result)

    def remainder(self, node: Any) -> Any:
        """Define a remainder by 0 and by -1, which that by 1 is."""
        return type(node)(node.a, _divisor(node.b)) if self._may_fail(node) else node

    def shift(self, node: Any) -> Any:
        """Define a shift by the width of its type and more."""
        width = tvm.DataType(_dtype(node)).bits
        if not self._depends_on_values(node.b) or _is_bounded(node.b, width):
            return node
        shifted = type(node)(node.a, _bounded(node.b, width))
        if isinstance(node, tirx.RShift) and _is_signed(node):
            return shifted
        return tirx.Select(is_inside(node.b, width), shifted, tirx.const(0, _dtype(node)))

    def _add_thread(self, statement: AttrStmt) -> None:
        if isinstance(statement.node, tirx.IterVar):
            self._counters.add(statement.node.var)

    def _add_loop(self, loop: For) -> None:
        if not any(map(self._depends_on_values, (loop.min, loop.extent))):
            self._counters.add(loop.loop_var)

    def _add_axes(self, block: SBlock) -> None:
        self._counters.update(axis.var for axis in block.iter_vars)

    def _depends_on_values(self, expression: Any) -> bool:
        # Most indices are a loop or a number, for which a walk takes long.
        if isinstance(expression, (tirx.IntImm, ir.Var)):
            return isinstance(expression, ir.Var) and expression not in self._counters
        reads: list[Any] = []
        variables: list[Any] = []
        visits = [(ir.TensorLoad, reads.append), (ir.Var, variables.append)]
        tvm_ffi.structural_walk(expression, visits)
        return bool(reads) or any(each not in self._counters for each in variables)

    def _may_leave(self, index: Any, size: int) -> bool:
        return self._depends_on_values(index) and not _is_bounded(index, size)

    def _may_fail(self, node: Any) -> bool:
        return "int" in _dtype(node) and self._depends_on_values(node.b) and not _is_divisor(node.b)

    def _region(self, region: Any) -> Any:
        ranges = []
        for part, size in zip(region.region, region.source.shape, strict=True):
            if not self._may_leave(part.min, int(size)) and not self._depends_on_values(
                part.extent
            ):
                ranges.append(part)
            elif isinstance(part.extent, tirx.IntImm) and int(part.extent) == 1:
                ranges.append(
                    tvm.ir.Range.from_min_extent(_bounded(part.min, int(size)), part.extent)
                )
            else:
                ranges.append(tvm.ir.Range(0, size))
        return (
            tirx.BufferRegion(region.source, ranges) if _differ(ranges, region.region) else region
        )


def _once(branch: tirx.IfThenElse) -> Any:
    """Return a branch without the same one inside: writes that had a guard got another one."""
    inner = branch.then_case
    is_double = isinstance(inner, tirx.IfThenElse) and branch.else_case is None
    return (
        inner
        if is_double and tvm_ffi.structural_equal(inner.condition, branch.condition)
        else branch
    )


def _bounded(index: Any, size: int) -> Any:
    """Return an index, or the last one of an axis if it lies outside."""
    dtype = _unsigned_dtype(index)
    unsigned = index if _dtype(index) == dtype else tirx.Cast(dtype, index)
    return tirx.Cast(_dtype(index), tirx.Min(unsigned, tirx.const(size - 1, dtype)))


def _is_bounded(index: Any, size: int) -> bool:
    """Return whether an index has a bound, or a type that the axis has room for."""
    if isinstance(index, tirx.FloorMod) and isinstance(index.b, tirx.IntImm):
        return 0 < int(index.b) <= size
    if not isinstance(index, tirx.Cast):
        return _dtype(index) == "bool"
    held, smallest = index.value, size - 1
    if isinstance(held, tirx.Min) and isinstance(held.b, tirx.IntImm):
        return not _is_signed(held) and int(held.b) <= smallest
    dtype = tvm.DataType(_dtype(held))
    return _dtype(held) == "bool" or (not _is_signed(held) and (1 << dtype.bits) <= size)


def _divisor(divisor: Any) -> Any:
    """Return a divisor with 1 in the place of 0 and -1."""
    is_special = _equals(divisor, 0)
    if _is_signed(divisor):
        is_special = tirx.Or(is_special, _equals(divisor, -1))
    return tirx.Select(is_special, tirx.const(1, _dtype(divisor)), divisor)


def _is_divisor(node: Any) -> bool:
    """Return whether a divisor is one that :func:`_divisor` made."""
    is_selection = isinstance(node, tirx.Select)
    return is_selection and tvm_ffi.structural_equal(node, _divisor(node.false_value))


def _equals(value: Any, number: int) -> Any:
    return tirx.EQ(value, tirx.const(number, _dtype(value)))


def _unsigned_dtype(value: Any) -> str:
    return f"uint{tvm.DataType(_dtype(value)).bits}"


def _is_signed(value: Any) -> bool:
    return _dtype(value).startswith("int")


def _dtype(value: Any) -> str:
    return str(value.ty)


def _differ(new: Nodes, old: Nodes) -> bool:
    return any(not one.same_as(other) for one, other in zip(new, old, strict=True))
