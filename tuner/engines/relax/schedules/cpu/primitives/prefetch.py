"""Prefetches of weights: what a product reads next comes from memory while it multiplies.

In a network larger than the caches, weights come from memory. A product whose tiles of rows all use
one block of weights before the next reads that block while its first tile waits, and nothing while
the others are computed. Here each tile also asks for its share of the next block. Which
products do is a decision of their traces.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.tirx import Evaluate, For, ForKind, IndexMap, PrimFunc, SeqStmt

from tuner.engines.relax.ir import ir_checks
from tuner.engines.relax.ir.packed_layouts import LAYOUT_FREE
from tuner.engines.relax.ir.rebuilt import rebuilt, rebuilt_block
from tuner.engines.relax.schedules.cpu.primitives.operands import operands_of

#: Annotation of the products whose weights are prefetched.
MARK = "tuner.prefetch"

# Weights of fewer bytes stay in the private cache of a core.
_MIN_BYTES = 2**19
_LINE_BYTES = 64
# Lines that a core can wait for at once, about.
_MAX_LINES = 32
_REDUCTION = 2
# Annotation that TVM's rules give to products that they tile.
_TILED = "meta_schedule.tiling_structure"
# Of LLVM's intrinsic: a read, for the second cache, of data.
_READ, _SECOND_CACHE, _DATA = 0, 2, 1


def spaces_with_prefetch(module: tvm.IRModule, spaces: Sequence[Schedule]) -> list[Schedule]:
    """Return the spaces in which the product of a workload prefetches its weights.

    Args:
        module: Unscheduled workload.

    Returns:
        None for a workload without large weights.
    """
    # Weights are what has one number for each output column.
    operands = operands_of(module)
    columns = {max((axis for each in operands for axis in each.axes), default=0)}
    n_bytes = max((each.n_bytes for each in operands if each.axes == columns), default=0)
    if n_bytes < _MIN_BYTES or not (module["main"].attrs or {}).get(LAYOUT_FREE):
        return []
    marked = []
    for space in spaces:
        # A trace holds what is asked of its schedule, the list of all blocks too, and cannot be
        # applied with a decision that changes their number: a copy is asked.
        asked = space.copy()
        blocks = [asked.get(block) for block in asked.get_child_blocks(asked.get_sblock("root"))]
        tiled = [str(block.name_hint) for block in blocks if _TILED in block.annotations]
        if len(tiled) == 1:
            copy = space.copy()
            copy.annotate(copy.get_sblock(tiled[0]), MARK, 1)
            marked.append(copy)
    return marked


def insert_prefetches(function: PrimFunc) -> PrimFunc:
    """Insert the prefetches of a scheduled kernel whose product has the mark.

    A product of another structure keeps none: one without a loop over tiles of rows inside one over
    blocks of the reduction, or whose blocks of weights do not follow each other in memory.
    """
    if not ir_checks.is_annotated(function, MARK):
        return function
    body, _ = _insert(function.body, [], list(function.params))
    return function.with_body(body)


@dataclass(frozen=True)
class _Prefetch:
    """A statement, and the loop that it precedes."""

    statement: Any
    loop: Any


def _insert(statement: Any, loops: list[For], params: list[Any]) -> tuple[Any, _Prefetch | None]:
    """Return a statement with prefetches, and one that belongs to a loop outside of it."""
    if isinstance(statement, SeqStmt):
        return SeqStmt([_insert(each, loops, params)[0] for each in statement.seq]), None
    if isinstance(statement, For):
        body, prefetch = _insert(statement.body, [*loops, statement], params)
        changed = rebuilt(statement, body)
        if prefetch is not None and prefetch.loop.same_as(statement):
            return SeqStmt([prefetch.statement, changed]), None
        return changed, prefetch
    if isinstance(statement, SBlockRealize):
        block = statement.block
        if MARK in block.annotations:
            return statement, _prefetch_of(statement, loops, params)
        if not block.iter_vars:
            changed = rebuilt_block(block, body=_insert(block.body, loops, params)[0])
            return SBlockRealize(statement.iter_values, statement.predicate, changed), None
    return statement, None


def _prefetch_of(realize: Any, loops: list[For], params: list[Any]) -> _Prefetch | None:
    """Return the prefetch of a product inside some loops, the outermost first."""
    reduced = [
        variable
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        if int(axis.iter_type) == _REDUCTION
        for variable in tirx.analysis.undefined_vars(value)
    ]

    def reduces(loop: For) -> bool:
        return _is_among(loop.loop_var, reduced)

    left = [loop for loop in loops if int(loop.extent) > 1]
    tile = _pop(left, lambda loop: not reduces(loop))
    block = _pop(left, reduces)
    rows = _pop(left, lambda loop: not reduces(loop) and loop.kind != ForKind.PARALLEL)
    if not (tile and block and rows and left and reduces(left[-1])):
        return None
    for region in realize.block.reads:
        if _is_among(region.source, params):
            weights = _Weights.of(region, realize, loops)
            if weights.depends_on(tile[-1]) and not any(map(weights.depends_on, rows)):
                inside = [*block, *(loop for loop in tile if weights.depends_on(loop))]
                statement = weights.prefetch(inside, rows)
                return None if statement is None else _Prefetch(statement, block[0])
    return None


@dataclass(frozen=True)
class _Weights:
    """A tensor that a product reads, and the indices of an element in its loops."""

    buffer: Any
    indices: list[Any]
    loops: list[For]

    @classmethod
    def of(cls, region: Any, realize: Any, loops: list[For]) -> "_Weights":
        """Return a tensor that a product reads one element of."""
        axes = [axis.var for axis in realize.block.iter_vars]
        starts = IndexMap(axes, [each.min for each in region.region], None)
        return cls(region.source, list(starts.map_indices(list(realize.iter_values))), loops)

    def depends_on(self, loop: For) -> bool:
        """Return whether another element is read in each iteration of a loop."""
        return any(
            _is_among(loop.loop_var, tirx.analysis.undefined_vars(index)) for index in self.indices
        )

    def prefetch(self, inside: list[For], rows: list[For]) -> Any:
        """Return a prefetch of the block behind the current one; None if that is elsewhere.

        Args:
            inside: Loops over a block.
            rows: Loops over tiles of rows; the iterations share the lines of a block.
        """
        n_elements = math.prod(int(loop.extent) for loop in inside)
        sizes = [int(size) for size in self.buffer.shape]
        if n_elements not in [math.prod(sizes[n:]) for n in range(1, len(sizes))]:
            return None
        n_rows = math.prod(int(loop.extent) for loop in rows)
        n_in_line = _LINE_BYTES * 8 // tvm.DataType(str(self.buffer.dtype)).bits
        n_lines = min(math.ceil(n_elements / n_in_line / n_rows), _MAX_LINES)
        variables = [loop.loop_var for loop in self.loops]
        at_start = [
            tirx.const(0, "int64") if _is_among(each, [loop.loop_var for loop in inside]) else each
            for each in variables
        ]
        *outer, last = IndexMap(variables, self.indices, None).map_indices(at_start)
        number: Any = 0
        for loop in rows:
            number = number * int(loop.extent) + loop.loop_var
        last += n_elements + number * (n_lines * n_in_line)
        lines = [_line(self.buffer, [*outer, last + n * n_in_line]) for n in range(n_lines)]
        body = SeqStmt(lines) if n_lines > 1 else lines[0]
        return SBlockRealize([], True, SBlock([], [], [], "prefetch", body))


def _line(buffer: Any, indices: list[Any]) -> Any:
    """Return the prefetch of a line; one behind the end of a buffer does nothing."""
    address = tirx.address_of(tirx.BufferLoad(buffer, indices))
    hints = [tirx.const(value, "int32") for value in (_READ, _SECOND_CACHE, _DATA)]
    return Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", address, *hints))


def _pop(loops: list[For], belongs: Callable[[For], bool]) -> list[For]:
    """Remove the last loops that belong together; return them in their order."""
    n = 0
    while n < len(loops) and belongs(loops[-1 - n]):
        n += 1
    taken = loops[len(loops) - n :]
    del loops[len(loops) - n :]
    return taken


def _is_among(value: Any, values: Iterable[Any]) -> bool:
    return any(value.same_as(each) for each in values)
