"""Schedules of Winograd's convolution by rule, in the order in which they are worth a trial.

The products of matrices take most of the time: their sums stay in registers while they run over all
input channels. Either each step is a nest of its own that the cores share, or the cores share bands
of tiles, for each of which all steps run in the private cache of a core. Bands read all weights
again, so they are for images that are large for their channels.
"""

import math
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tuner.engines.relax.codegen.cpu.dot_instructions import packed_for
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import Registers, max_rows
from tuner.engines.relax.schedules.variants.convolutions import MULTIPLE

# Loops over products of matrices, batch, rows and columns of tiles, and channels.
_PRODUCT_LOOPS = 6
# Cycles from a product to the next one that adds to the same sum, and products a cycle.
_LATENCY, _PER_CYCLE = 4, 2
# Products a cycle of instructions that add several terms; another one adds them to the sums.
_DOTS_PER_CYCLE = 1.4
# Bytes that a core reads in a cycle from its private cache, from the shared one and from memory,
# and that it passes on to the next step through the shared cache, in order.
_PRIVATE_BYTES, _SHARED_BYTES, _MEMORY_BYTES, _PASSED_BYTES = 24, 8, 6, 20
_L1_BYTES, _L2_BYTES, _L3_BYTES, _ELEMENT_BYTES = 2**15, 2**20, 2**24, 4
_MAX_CHOICES = 64
# Rows whose addresses fit the other registers.
_MAX_ROWS = 16
# Products of a window, and cycles that the transforms take for each vector of their numbers.
_DIRECT_PRODUCTS, _TRANSFORM_CYCLES = 9, 4
# Steps, and cycles that the other cores take to start one.
_N_STEPS, _START_CYCLES = 3, 8000
# Share of the products a cycle that direct convolutions reach.
_DIRECT_SHARE = 0.92


class Sizes(NamedTuple):
    """Sizes of a program: products of matrices, rows and columns of tiles, channels in and out.

    Attributes:
        panel: Output channels whose weights may lie side by side.
        terms: Products that an instruction adds to each sum.
    """

    n_products: int
    batch: int
    rows: int
    columns: int
    c_in: int
    c_out: int
    panel: int
    terms: int = 1

    @property
    def n_weight_bytes(self) -> int:
        """Bytes of a number of the data or the weights."""
        return _ELEMENT_BYTES // self.terms

    @property
    def per_cycle(self) -> float:
        """Products of vectors a cycle."""
        return _PER_CYCLE if self.terms == 1 else _DOTS_PER_CYCLE

    def max_rows(self, vectors: int, registers: Registers) -> int:
        """Return the rows of a tile whose sums and operands fit the registers."""
        if self.terms == 1:
            return min(max_rows(vectors, registers), _MAX_ROWS)
        # Beside sums and weights, there is a register for data, and one for products.
        return (registers.n - vectors - 2) // vectors


@dataclass(frozen=True)
class Choice:
    """Decisions of a schedule.

    Attributes:
        tile: Rows and columns of tiles, and vectors of channels, whose sums are in registers.
        band: Rows and columns of tiles in a band; None for separate nests.
    """

    tile: tuple[int, int, int]
    band: tuple[int, int] | None


def choices(sizes: Sizes, registers: Registers, n_cores: int) -> list[Choice]:
    """Return decisions, those with the fewest estimated cycles first, then the largest tiles."""
    bands = [
        None,
        *((1, columns) for columns in _divisors(sizes.columns)[:-1]),
        *((rows, sizes.columns) for rows in _divisors(sizes.rows)),
    ]
    every: dict[Any, Choice] = {}
    for band, vectors in product(bands, _divisors(sizes.panel // registers.lanes)):
        n_rows, n_columns = band or (sizes.rows, sizes.columns)
        for rows, columns in product(_divisors(n_rows), _divisors(n_columns)):
            if rows * columns <= sizes.max_rows(vectors, registers):
                # Of tiles with as many sums, that with the fewest rows.
                every.setdefault(
                    (band, vectors, rows * columns), Choice((rows, columns, vectors), band)
                )

    def key(choice: Choice) -> tuple[float, int]:
        return estimate_cycles(choice, sizes, registers, n_cores), -math.prod(choice.tile)

    return sorted(every.values(), key=key)[:_MAX_CHOICES]


def estimate_cycles(choice: Choice, sizes: Sizes, registers: Registers, n_cores: int) -> float:
    """Estimate the cycles that each core takes.

    A step of a register tile multiplies or waits for its sums, and loads a line of weights, once
    for all tiles of a band if these stay close by. Weights come from memory, where the rest of a
    network leaves them; bands that do not keep them in the private cache read them again.
    """
    rows, columns, vectors = choice.tile
    n_tiles = sizes.batch * sizes.rows * sizes.columns
    n_steps = (
        sizes.n_products * n_tiles * sizes.c_in * sizes.c_out
        / (rows * columns * vectors * registers.lanes * sizes.terms)
    )  # fmt: skip
    line = vectors * registers.lanes * _ELEMENT_BYTES
    n_rows = rows * columns
    in_band = math.prod(choice.band) if choice.band else n_tiles
    n_uses = in_band / n_rows if line * sizes.c_in // sizes.terms <= _L1_BYTES else 1
    step = max(
        n_rows * vectors / sizes.per_cycle,
        (n_rows + vectors) / _PER_CYCLE,
        line / _PRIVATE_BYTES / n_uses,
        _LATENCY,
    )
    n_bands = n_tiles // in_band if choice.band else 1
    weights = sizes.n_products * sizes.c_in * sizes.c_out * sizes.n_weight_bytes
    n_bytes = sizes.c_in * sizes.n_weight_bytes + sizes.c_out * _ELEMENT_BYTES
    values = sizes.n_products * n_tiles * n_bytes / n_bands
    cycles = n_steps * step + weights / _MEMORY_BYTES
    if choice.band and weights + values > _L2_BYTES:
        cycles += (n_bands - 1) * weights / _SHARED_BYTES
    # What one step passes on to the next is written and read.
    if values > (_L2_BYTES / 2 if choice.band else n_cores * _L2_BYTES):
        passing = _PASSED_BYTES if values <= _L3_BYTES else _MEMORY_BYTES
        cycles += n_bands * (2.0 * values / passing)
    n_jobs = n_bands if choice.band else sizes.n_products
    n_starts = 0 if choice.band else _N_STEPS - 1
    return cycles * math.ceil(n_jobs / n_cores) / n_jobs + n_starts * _START_CYCLES


def estimate_gain(sizes: Sizes, n_positions: int, registers: Registers, n_cores: int) -> float:
    """Estimate the cycles of a direct convolution over the cycles of the first choice.

    Args:
        sizes: Sizes of a program.
        n_positions: Images times rows times columns of the output.
        registers: Registers of the target.
        n_cores: Cores that share the work.
    """
    n_products = _DIRECT_PRODUCTS * n_positions * sizes.c_in * sizes.c_out
    weights = _DIRECT_PRODUCTS * sizes.c_in * sizes.c_out * sizes.n_weight_bytes
    per_cycle = registers.lanes * sizes.terms * sizes.per_cycle * _DIRECT_SHARE
    direct = n_products / per_cycle + weights / _SHARED_BYTES
    n_tiles = sizes.batch * sizes.rows * sizes.columns
    n_numbers = n_tiles * (sizes.c_in / sizes.terms + sizes.c_out) * sizes.n_products
    transforms = n_numbers / registers.lanes * _TRANSFORM_CYCLES
    first = choices(sizes, registers, n_cores)[0]
    cycles = estimate_cycles(first, sizes, registers, n_cores)
    return direct / n_cores / (cycles + transforms / n_cores)


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def sizes_of(program: tvm.IRModule) -> Sizes:
    """Return the sizes of a program."""
    schedule = Schedule(program)
    multiply = schedule.get(schedule.get_sblock("multiply"))
    extents = [int(axis.dom.extent) for axis in multiply.iter_vars]
    weight = multiply.reads[1].source
    n_products, batch, rows, columns, c_out, c_in = extents
    by = packed_for(weight)
    panel, terms = (MULTIPLE, by.terms) if by else (int(weight.shape[-1]), 1)
    return Sizes(n_products, batch, rows, columns, c_in, c_out, panel, terms)


def apply(schedule: Schedule, choice: Choice, lanes: int) -> None:
    """Schedule a program in place.

    Args:
        choice: Decisions.
        lanes: Elements of a vector.
    """
    data, multiply, outputs = (
        schedule.get_sblock(name) for name in ("transform_data", "multiply", "transform_products")
    )
    last = schedule.get_output_blocks(schedule.get_sblock("root"))[0]
    batch, rows, columns, channels = schedule.get_loops(outputs)
    by = packed_for(schedule.get(multiply).reads[1].source)
    # The outputs of integers are computed as vectors.
    outer, *inner = [channels] if by else _vectors(schedule, channels, lanes)
    is_banded = choice.band is not None
    if choice.band:
        row_bands, rows = schedule.split(rows, [None, choice.band[0]])
        column_bands, columns = schedule.split(columns, [None, choice.band[1]])
        schedule.reorder(batch, row_bands, column_bands, rows, columns, outer, *inner)
        jobs = schedule.fuse(batch, row_bands, column_bands)
        for block in (multiply, data):
            schedule.compute_at(block, jobs, preserve_unit_loops=True)
        schedule.parallel(jobs)
    schedule.reverse_compute_at(last, outer)
    for loop in (*inner, schedule.get_loops(last)[-1]):
        schedule.vectorize(loop)
    if not is_banded:
        schedule.parallel(schedule.fuse(batch, rows, columns))
    n_terms = by.terms if by else 1
    *tiles, channels = schedule.get_loops(data)
    schedule.vectorize(_vectors(schedule, channels, lanes * n_terms)[1])
    if not is_banded:
        schedule.parallel(schedule.fuse(*tiles))
    _tile_product(schedule, multiply, choice.tile, lanes, is_parallel=not is_banded)


def inline(program: tvm.IRModule) -> tvm.IRModule:
    """Inline what comes before the first transform, and between the last one and the output."""
    schedule = Schedule(program)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    names = [str(schedule.get(block).name_hint) for block in blocks]
    *middle, _ = blocks[names.index("crop") :]
    for block in (*blocks[: names.index("transform_weight")], *middle):
        schedule.compute_inline(block)
    return schedule.mod


def _vectors(schedule: Schedule, loop: LoopRV, lanes: int) -> list[LoopRV]:
    return list(schedule.split(loop, [None, lanes]))


def _narrow_panels(schedule: Schedule, multiply: SBlockRV, width: int) -> None:
    """Have the weights of a tile follow each other in memory, from where they stream faster."""
    weight = schedule.get(multiply).reads[1].source
    by = packed_for(weight)
    n_blocks = width // by.lanes if by else 1
    if n_blocks > 1:
        schedule.transform_layout(
            multiply,
            ("read", 1),
            lambda n, block, c_in, c, term: [n, block // n_blocks, c_in, block % n_blocks, c, term],
        )
    elif not by and int(weight.shape[-1]) > width:
        schedule.transform_layout(
            multiply, ("read", 1), lambda n, panel, c_in, c: [n, panel, c // width, c_in, c % width]
        )


def _tile_product(
    schedule: Schedule,
    multiply: SBlockRV,
    tile: tuple[int, int, int],
    lanes: int,
    *,
    is_parallel: bool,
) -> None:
    by = packed_for(schedule.get(multiply).reads[1].source)
    _narrow_panels(schedule, multiply, tile[2] * lanes)
    *outer, rows, columns, c_out, c_in = schedule.get_loops(multiply)[-_PRODUCT_LOOPS:]
    row_tiles, rows = schedule.split(rows, [None, tile[0]])
    column_tiles, columns = schedule.split(columns, [None, tile[1]])
    panels, vectors, vector = schedule.split(c_out, [None, tile[2], lanes])
    c_in, *terms = schedule.split(c_in, [None, by.terms]) if by else [c_in]
    schedule.reorder(
        *outer, panels, row_tiles, column_tiles, c_in, rows, columns, vectors, vector, *terms
    )
    for loop in (rows, columns, vectors):
        schedule.unroll(loop)
    if not by:
        schedule.vectorize(vector)
    sums = schedule.cache_write(multiply, 0, "global")
    schedule.reverse_compute_at(sums, column_tiles)
    schedule.vectorize(_vectors(schedule, schedule.get_loops(sums)[-1], lanes)[1])
    if is_parallel:
        schedule.parallel(schedule.fuse(*outer, panels))
    start = schedule.decompose_reduction(multiply, c_in)
    if by:
        schedule.vectorize(schedule.get_loops(start)[-1])
        schedule.tensorize(vector, by.name)
