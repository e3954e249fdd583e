"""Blocks of the programs of variants, made of TIR."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tvm
from tvm import tirx
from tvm.ir import Range, TensorRegion
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import Buffer, For, ForKind, IterVar, PrimFunc, SeqStmt, Var
from tvm.tirx.stmt import BufferRegion

from tuner.engines.relax.ir.packed_layouts import LAYOUT_FREE
from tuner.engines.relax.schedules.variants.convolutions import DTYPE, INDEX, Point

_SPATIAL, _REDUCTION = 0, 2


class Body(NamedTuple):
    """Statement of a block, with what it reads and writes; and what starts its sums."""

    statement: Any
    reads: list[TensorRegion]
    writes: list[TensorRegion]
    init: Any = None


def nest(
    name: str,
    extents: Sequence[int],
    body: Callable[..., Body],
    *,
    n_reduced: int = 0,
    annotations: dict[str, Any] | None = None,
) -> For:
    """Return loops around a block, whose last axes are reduced."""
    axes = [Var(f"v{i}", INDEX) for i in range(len(extents))]
    loops = [Var(f"i{i}", INDEX) for i in range(len(extents))]
    made = body(*axes)
    kinds = [_SPATIAL] * (len(axes) - n_reduced) + [_REDUCTION] * n_reduced
    iterators = [
        IterVar(Range(as_index(0), as_index(extent)), axis, kind)
        for extent, axis, kind in zip(extents, axes, kinds, strict=True)
    ]
    block = SBlock(
        iterators,
        made.reads,
        made.writes,
        name,
        made.statement,
        made.init,
        annotations=annotations or {},
    )
    around: Any = SBlockRealize(loops, True, block)
    for loop, extent in zip(reversed(loops), reversed(extents), strict=True):
        around = For(loop, as_index(0), as_index(extent), ForKind.SERIAL, around)
    return around


def with_statements(
    function: PrimFunc, statements: Sequence[Any], buffers: Sequence[Buffer]
) -> tvm.IRModule:
    """Return a kernel with other statements and buffers, whose weights keep the layout they get."""
    block = SBlock([], [], [], "root", SeqStmt(statements), alloc_buffers=buffers)
    program = PrimFunc(
        list(function.params), SBlockRealize([], True, block), function.ret_type, function.attrs
    )
    return tvm.IRModule({"main": program.without_attr(LAYOUT_FREE)})


def region(buffer: Buffer, ranges: Sequence[tuple[Any, Any]]) -> TensorRegion:
    """Return a part of a buffer, given by the first index and the extent of each dimension."""
    return BufferRegion(buffer, [Range.from_min_extent(*map(as_index, each)) for each in ranges])


def element(buffer: Buffer, at: Point) -> TensorRegion:
    """Return the region of one element."""
    return region(buffer, [(index, 1) for index in at])


def new_buffer(name: str, shape: Sequence[int], dtype: str = DTYPE) -> Buffer:
    """Return a buffer of numbers."""
    return tirx.decl_buffer([as_index(size) for size in shape], dtype, name)


def as_index(value: Any) -> Any:
    """Return an index in the type of all indices of a lowered network."""
    return tirx.const(value, INDEX) if isinstance(value, int) else value


def shape_of(buffer: Buffer) -> list[int]:
    """Return the sizes of the dimensions of a buffer."""
    return [int(size) for size in buffer.shape]
