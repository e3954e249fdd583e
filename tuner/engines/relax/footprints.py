"""How much of its operands a tile of a workload reads, and how much it computes."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm.s_tir import SBlock, Schedule
from tvm.tirx import Add, Cast, IntImm, IterVar, Mul

# The value of an index, given that of every loop.
_Index = Callable[[Sequence[int]], int]


class Footprints:
    """What a tile of a block reads of each operand, and the sums that it puts together.

    Args:
        module: The workload.
        block: Name of the block.

    Raises:
        ValueError: If an index of an operand is not a sum of multiples of loops.
    """

    def __init__(self, module: tvm.IRModule, block: str) -> None:
        schedule = Schedule(module)
        found: SBlock = schedule.get(schedule.get_sblock(block))
        order = {hash(each.var): place for place, each in enumerate(found.iter_vars)}
        self._operands = [
            (_itemsize(region), [_index(each.min, order) for each in region.region])
            for region in found.reads
        ]
        self._is_output = [each.iter_type == IterVar.DataPar for each in found.iter_vars]
        self._sum_bytes = _itemsize(found.writes[0])

    def bytes_of(self, operand: int, extents: Sequence[int]) -> int:
        """Bytes of an operand that a tile reads whose loops have these extents."""
        return self._operands[operand][0] * math.prod(self.shape_of(operand, extents))

    def shape_of(self, operand: int, extents: Sequence[int]) -> list[int]:
        """Shape of the part of an operand that a tile reads whose loops have these extents."""
        last = [extent - 1 for extent in extents]
        # Indices grow with every loop, so that the last of the tile has the largest.
        first = [0] * len(last)
        return [index(last) - index(first) + 1 for index in self._operands[operand][1]]

    def sum_bytes_of(self, extents: Sequence[int]) -> int:
        """Bytes of the sums that a tile puts together whose loops have these extents."""
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
        place = order[hash(expression)]
        return lambda loops: loops[place]
    raise ValueError(f"no sum of multiples of loops: {expression}")
