"""Products and convolutions that TVM's rules tile: their extents and operands."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Instruction

from tuner.engines.relax.schedules.base import Workload
from tuner.engines.relax.schedules.cpu.primitives.operands import Operand, operands_of
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import (
    Registers,
    product_cycles,
    registers_of,
)

# Levels into which TVM's rules split the loops of a convolution or product.
SPATIAL, REDUCTION = 4, 2


@dataclass(frozen=True, eq=False)
class Product:
    """A product or convolution.

    Attributes:
        spaces: Its spaces with tiles.
        operands: Tensors that are multiplied.
        extents: Extents of the result; the last is the columns.
        reduced: Extents of the reduction, the inputs of a convolution last.
        registers: Registers of the target.
    """

    spaces: Sequence[Schedule]
    operands: list[Operand]
    extents: list[int]
    reduced: list[int]
    registers: Registers

    @property
    def n_terms(self) -> int:
        """Products that are added to each element of the result."""
        return math.prod(self.reduced)

    @property
    def has_window(self) -> bool:
        """True for a convolution with a window of more than one element."""
        return math.prod(self.reduced[:-1]) > 1

    @property
    def has_groups(self) -> bool:
        """True for a grouped convolution."""
        return any(operand.group for operand in self.operands)

    @property
    def cycles(self) -> float:
        """Estimated cycles with the register tile that divides the result."""
        return self.n_terms * product_cycles(self.extents, self.operands, self.registers)


def tiled_spaces(workload: Workload) -> list[Schedule]:
    """Return the spaces of a product or convolution; none of other workloads."""
    return [space for space in workload.spaces if tiles_of(space, SPATIAL)]


@lru_cache(maxsize=1)
def find_product(workload: Workload) -> Product | None:
    """Return the product or convolution of a workload; None for others."""
    spaces = tiled_spaces(workload)
    if not spaces:
        return None
    extents, reduced = (
        [extent for _, extent in tiles_of(spaces[0], n_levels)] for n_levels in (SPATIAL, REDUCTION)
    )
    operands = operands_of(workload.module)
    return Product(spaces, operands, extents, reduced, registers_of(workload.target))


def tiles_of(space: Schedule, n_levels: int) -> list[tuple[Instruction, int]]:
    """Return the splits into a number of levels with the extents of their loops."""
    return [
        (instruction, math.prod(int(size) for size in decision))
        for instruction, decision in space.trace.decisions.items()
        if instruction.kind.name == "SamplePerfectTile" and len(decision) == n_levels
    ]
