"""Innermost tiles of convolutions and products, whose sums stay in the vector registers."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import tvm
from tvm.target import Target

from tuner.engines.relax.schedules.cpu.primitives.operands import Operand
from tuner.engines.relax.schedules.cpu.primitives.spread_loads import vector_sizes

# Registers left for operands beside the sums of a tile.
_N_OPERAND_REGISTERS = 8
# Cycles from a product to the next one that adds to the same sum.
LATENCY = 4
# Products of vectors a cycle, and loads of vectors or single numbers, as measured.
PRODUCTS_PER_CYCLE, LOADS_PER_CYCLE = 2, 1.25
# Cycles of the load of a vector from the second cache, and bytes that the first one keeps.
FAR_CYCLES, L1_BYTES = 2.5, 2**15
# Longest loop over an axis that no vector divides.
_MAX_LOOP = 1024
_MIN_VECTOR = 4
# Longest loop that TVM's rules vectorise.
_MAX_WIDTH = 64
# Vectors of the last axis in a tile.
_MAX_VECTORS = 12
# Smallest group of a grouped convolution that fills a vector.
_MIN_GROUP = 4


@dataclass(frozen=True)
class Registers:
    """Vector registers of a CPU: their number, and float32 lanes of each."""

    n: int
    lanes: int

    @property
    def n_sums(self) -> int:
        """Registers that sums may take."""
        return self.n - _N_OPERAND_REGISTERS


def register_tile(
    extents: Sequence[int], operands: Sequence[Operand], registers: Registers
) -> list[int]:
    """Return the innermost tile that is estimated to be the fastest."""
    return register_tiles(extents, operands, registers)[0]


def register_tiles(
    extents: Sequence[int], operands: Sequence[Operand], registers: Registers
) -> list[list[int]]:
    """Return innermost tiles: vectors of the last axis, rows of the others; the fastest first.

    A step of the reduction loads the vectors or single numbers of its operands, and adds every
    product. Few sums wait for each other, many do not fit the registers. Of tiles that are as
    fast, the one with the fewest loads is taken.

    Args:
        extents: Extents of the spatial loops.
        operands: Tensors that the reduction reads.
        registers: Registers of the target.
    """
    *others, last = extents
    groups = [operand.group for operand in operands if operand.group >= _MIN_GROUP]
    tiles = [
        [*rows, width]
        for width in _widths(math.gcd(last, *groups), registers.lanes)
        for rows in _rows(others, max_rows(len(vector_sizes(width, registers.lanes)), registers))
    ]

    def speed(tile: Sequence[int]) -> tuple[float, float]:
        """Estimate the useful products a cycle, and a load."""
        useful, n_loads = math.prod(tile), _n_loads(tile, operands, registers)
        return useful / cycles_of(tile, operands, registers), useful / max(n_loads, 1)

    return sorted(tiles, key=speed, reverse=True)


def _widths(extent: int, lanes: int) -> list[int]:
    """Return the widths that divide the last axis: powers of two and whole vectors, or any.

    A long prime axis stays whole, so that LLVM makes vectors of its loop and handles the rest.
    """
    whole = [n * lanes for n in range(1, _MAX_VECTORS + 1) if extent % (n * lanes) == 0]
    if whole:
        powers = [width for width in (4, 8, 16, 32, 64) if extent % width == 0]
        return sorted({*whole, *powers})
    # The rest of a vector is computed by shorter ones.
    parts = [width for width in range(_MIN_VECTOR, _MAX_WIDTH + 1) if extent % width == 0]
    return parts or [largest_divisor(extent, _MAX_LOOP)]


def max_rows(n_vectors: int, registers: Registers) -> int:
    """Return the most rows of a tile whose sums, and all operands of a step, fit the registers.

    LLVM may load the numbers of all rows before the products; of one vector, it reads them from
    memory with each product.
    """
    n_rows = registers.n_sums // n_vectors
    return n_rows if n_vectors == 1 else min(n_rows, (registers.n - n_vectors) // (n_vectors + 1))


def n_vector_steps(width: int, lanes: int) -> int:
    """Return the number of vectors that a loop goes through; 1 if TVM takes the width at once."""
    return width // lanes if width > _MAX_WIDTH and width % lanes == 0 else 1


def _rows(extents: Sequence[int], n_rows: int) -> Iterator[list[int]]:
    """Yield divisors of the extents with a product up to a limit; large ones of the last first."""
    if not extents:
        yield []
        return
    *others, last = extents
    for size in divisors(last, n_rows):
        yield from ([*rows, size] for rows in _rows(others, n_rows // size))


def cycles_of(
    tile: Sequence[int],
    operands: Sequence[Operand],
    registers: Registers,
    loads_per_cycle: float = LOADS_PER_CYCLE,
    far_cycles: float = FAR_CYCLES,
) -> float:
    """Estimate the cycles that a register tile takes for one step of the reduction."""
    n_products = math.prod(tile[:-1]) * len(vector_sizes(tile[-1], registers.lanes))
    n_loads = _n_loads(tile, operands, registers)
    last = len(tile) - 1
    far = [each for each in operands if last in each.axes and each.n_bytes > L1_BYTES]
    n_far = _n_loads(tile, far, registers) * far_cycles
    return max(n_products / PRODUCTS_PER_CYCLE, n_loads / loads_per_cycle, n_far, LATENCY)


def product_cycles(
    extents: Sequence[int], operands: Sequence[Operand], registers: Registers
) -> float:
    """Estimate the cycles of one term of every sum with the register tile that divides the sums."""
    tile = register_tile(extents, operands, registers)
    cycles = math.prod(extents) / math.prod(tile) * cycles_of(tile, operands, registers)
    is_scalar = tile[-1] > _MAX_WIDTH and tile[-1] % registers.lanes != 0
    return cycles * (registers.lanes if is_scalar else 1)


def _n_loads(tile: Sequence[int], operands: Sequence[Operand], registers: Registers) -> int:
    sizes = [*tile[:-1], len(vector_sizes(tile[-1], registers.lanes))]
    return sum(math.prod(sizes[axis] for axis in operand.axes) for operand in operands)


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number up to a limit; 1 if the limit is below 1."""
    return divisors(number, most)[0]


def divisors(number: int, most: int) -> list[int]:
    """Return the divisors of a number up to a limit, at least 1; the largest comes first."""
    return [d for d in range(max(min(number, most), 1), 0, -1) if number % d == 0]


@lru_cache(maxsize=8)
def registers_of(target: Target) -> Registers:
    """Return the vector registers of a CPU."""

    def has(feature: str) -> bool:
        return bool(tvm.target.codegen.llvm_cpu_has_features(feature, target))

    if not any(word in str(target.attrs.get("mtriple", "x86_64")) for word in ("x86", "amd64")):
        return Registers(32, 4)
    if has("avx512f"):
        return Registers(32, 16)
    return Registers(16, 8 if has("avx2") else 4)
