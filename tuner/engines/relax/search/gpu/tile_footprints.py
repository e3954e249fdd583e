"""Bytes that a tile of a workload reads of its operands, and bytes of its sums."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm.s_tir import SBlock, Schedule
from tvm.tirx import Add, Cast, IntImm, IterVar, Mul

# Value of an index as a function of the loop values.
_Index = Callable[[Sequence[int]], int]


class Footprints:
    """Memory footprints of the tiles of a block, per operand and for its sums.

    Args:
        module: The workload.
        block: Name of the block.

    Raises:
        ValueError: If an index of an operand is not a sum of multiples of loops.
    """

    def __init__(self, module: tvm.IRModule, block: str) -> None:
        schedule = Schedule(module)
        block_ir: SBlock = schedule.get(schedule.get_sblock(block))
        order = {hash(axis.var): position for position, axis in enumerate(block_ir.iter_vars)}
        self._operands = [
            (_itemsize(region), [_index(part.min, order) for part in region.region])
            for region in block_ir.reads
        ]
        self._is_output = [axis.iter_type == IterVar.DataPar for axis in block_ir.iter_vars]
        self._sum_bytes = _itemsize(block_ir.writes[0])

    def bytes_of(self, operand: int, extents: Sequence[int]) -> int:
        """Return the bytes of an operand that a tile with these loop extents reads."""
        return self._operands[operand][0] * math.prod(self.shape_of(operand, extents))

    def shape_of(self, operand: int, extents: Sequence[int]) -> list[int]:
        """Return the shape of the part of an operand that a tile with these loop extents reads."""
        last = [extent - 1 for extent in extents]
        # Indices grow with every loop, so that the last of the tile has the largest.
        first = [0] * len(last)
        return [index(last) - index(first) + 1 for index in self._operands[operand][1]]

    def sum_bytes_of(self, extents: Sequence[int]) -> int:
        """Return the bytes of the sums that a tile with these loop extents accumulates."""
        outputs = zip(extents, self._is_output, strict=True)
        return self._sum_bytes * math.prod(extent for extent, is_output in outputs if is_output)


def _itemsize(region: Any) -> int:
    return int(tvm.runtime.DataType(str(region.source.dtype)).itemsize)


def _index(expression: Any, order: dict[int, int]) -> _Index:
    if isinstance(expression, IntImm):
        constant = int(expression)
        return lambda _: constant
    if isinstance(expression, Cast):
        return _index(expression.value, order)
    if isinstance(expression, (Add, Mul)):
        left, right = _index(expression.a, order), _index(expression.b, order)
        if isinstance(expression, Add):
            return lambda loops: left(loops) + right(loops)
        return lambda loops: left(loops) * right(loops)
    if hash(expression) in order:
        position = order[hash(expression)]
        return lambda loops: loops[position]
    raise ValueError(f"not a sum of multiples of loops: {expression}")
