"""How much of its operands a tile of a workload reads: the shared memory that it takes."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm.s_tir import SBlock, Schedule
from tvm.tirx import Add, Cast, IntImm, Mul

# The value of an index, given that of every loop.
_Index = Callable[[Sequence[int]], int]


class Footprints:
    """Bytes that a tile of a block reads of each operand.

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
            (
                tvm.runtime.DataType(str(region.source.dtype)).itemsize,
                [_index(each.min, order) for each in region.region],
            )
            for region in found.reads
        ]

    def bytes_of(self, operand: int, extents: Sequence[int]) -> int:
        """Bytes of an operand that a tile reads whose loops have these extents."""
        itemsize, indices = self._operands[operand]
        last = [extent - 1 for extent in extents]
        # Indices grow with every loop, so that the last of the tile has the largest.
        first = [0] * len(last)
        sizes = [index(last) - index(first) + 1 for index in indices]
        return int(itemsize) * math.prod(sizes)


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
