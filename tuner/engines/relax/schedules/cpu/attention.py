"""Schedules by rule for attention: the product, the softmax and the product with it in one kernel.

The cores share the heads. Each packs the keys and values of a head once, and a tile of rows goes
through all steps while its scores are in the cache.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import SBlockRV, Trace
from tvm.sym import Analyzer

from tuner.engines.relax.schedules.base import Workload, attempts
from tuner.engines.relax.schedules.cpu.primitives.blocks import (
    REDUCTION,
    SPATIAL,
    axes_of,
    extents_of,
    is_free_to_inline,
    name_of,
    uses,
)
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import (
    LATENCY,
    LOADS_PER_CYCLE,
    PRODUCTS_PER_CYCLE,
    Registers,
    registers_of,
)

#: Annotation of the first product, by which traces are known.
MARK = "tuner.attention"

_N_PRODUCTS = 2
_ELEMENT_BYTES = 4
# Rows below which packing the keys takes longer than what it saves.
_MIN_ROWS = 16
# Bytes that the private cache of a core is taken to keep.
_PRIVATE_BYTES = 2**20
# Scores whose reference takes seconds: a head of 8,192 rows and keys.
_MAX_SCORES = 2**26
# Rows and vectors of a tile, and tiles that a search may measure.
_MAX_TILE_ROWS, _MAX_VECTORS, _MAX_TILES = 12, 4, 24


@dataclass(frozen=True)
class AttentionTile:
    """Register tiles of both products.

    Attributes:
        n_rows: Rows that go through all steps together.
        n_score_vectors: Vectors of scores of a row in a tile.
        n_value_vectors: Vectors of the result of a row in a tile.
    """

    n_rows: int
    n_score_vectors: int
    n_value_vectors: int


@dataclass(frozen=True)
class Attention:
    """Products of a workload: their blocks and sizes."""

    scores: SBlockRV
    context: SBlockRV
    n_heads: int
    n_rows: int
    n_keys: int
    n_terms: int
    n_values: int


def ranked(workload: Workload, attention: Attention) -> Iterator[Trace]:
    """Rank schedules of attention in one kernel; see :class:`ScheduleRule`."""
    registers, n_cores = registers_of(workload.target), workload.n_cores
    tiles = attention_tiles(attention, registers, n_cores)
    lanes = registers.lanes
    return attempts(workload, schedule_attention, tiles, lanes=lanes, n_cores=n_cores)


def find_attention(schedule: Schedule) -> Attention | None:
    """Return the products of a workload that is an attention; None for others."""
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    products = [block for block in blocks if _is_product(schedule, block)]
    n_reductions = sum(bool(extents_of(schedule, block, REDUCTION)) for block in blocks)
    if len(products) != _N_PRODUCTS or n_reductions < _N_PRODUCTS + 2:
        return None
    scores, context = products
    *heads, n_rows, n_keys = extents_of(schedule, scores, SPATIAL)
    *others, n_out, n_values = extents_of(schedule, context, SPATIAL)
    (n_terms,), reduced = (extents_of(schedule, each, REDUCTION) for each in products)
    if n_out != n_rows or reduced != [n_keys] or math.prod(others) != math.prod(heads):
        return None
    return Attention(scores, context, math.prod(heads), n_rows, n_keys, n_terms, n_values)


def is_worthwhile(scores: Sequence[int], n_terms: int) -> bool:
    """Return whether one kernel is expected to be faster than one for each step.

    A few rows are not worth packing the keys for, and what is packed has to stay in the private
    cache.

    Args:
        scores: Shape of the scores: heads, rows, keys.
        n_terms: Products that are added to each score.
    """
    _, n_rows, n_keys = scores
    if math.prod(scores) > _MAX_SCORES:
        return False
    n_packed = _N_PRODUCTS * n_keys * n_terms * _ELEMENT_BYTES
    return min(n_rows, n_keys) >= _MIN_ROWS and n_packed <= _PRIVATE_BYTES


def has_schedule(schedule: Schedule) -> bool:
    """Return whether a schedule by rule fits an unscheduled workload, which is then changed."""
    try:
        schedule_attention(schedule, AttentionTile(2, 1, 1), lanes=4, n_cores=2)
    except (ScheduleError, RuntimeError, ValueError):
        return False
    return True


def attention_tiles(
    attention: Attention, registers: Registers, n_cores: int
) -> list[AttentionTile]:
    """Return register tiles, the fewest estimated cycles first."""

    def cycles(tile: AttentionTile) -> float:
        multiple = tile.n_rows * _n_groups(attention.n_heads, n_cores)
        n_tiles = math.ceil(attention.n_rows / multiple)
        products = (
            (attention.n_keys, attention.n_terms, tile.n_score_vectors),
            (attention.n_values, attention.n_keys, tile.n_value_vectors),
        )
        return n_tiles * sum(
            math.ceil(n_columns / (n_vectors * registers.lanes))
            * n_terms
            * _cycles(tile.n_rows, n_vectors)
            * multiple
            / tile.n_rows
            for n_columns, n_terms, n_vectors in products
        )

    tiles = [
        AttentionTile(n_rows, n_score_vectors, n_value_vectors)
        for n_rows in range(1, min(attention.n_rows, _MAX_TILE_ROWS) + 1)
        for n_score_vectors in range(1, _MAX_VECTORS + 1)
        for n_value_vectors in range(1, _MAX_VECTORS + 1)
        if n_rows * max(n_score_vectors, n_value_vectors) <= registers.n_sums
    ]
    return sorted(tiles, key=cycles)[:_MAX_TILES]


def _cycles(n_rows: int, n_vectors: int) -> float:
    """Estimate the cycles of a register tile for one term of its sums."""
    n_products, n_loads = n_rows * n_vectors, n_rows + n_vectors
    return max(n_products / PRODUCTS_PER_CYCLE, n_loads / LOADS_PER_CYCLE, LATENCY)


def schedule_attention(schedule: Schedule, tile: AttentionTile, lanes: int, n_cores: int) -> None:
    """Schedule an attention in place.

    Args:
        schedule: Schedule of an unscheduled workload.
        tile: Register tiles.
        lanes: Elements of a vector.
        n_cores: Cores that share the heads; 1 for no threads.

    Raises:
        ScheduleError: If the workload has another structure; the schedule is then half done.
    """
    attention = find_attention(schedule)
    if attention is None:
        raise ScheduleError("the workload is not attention")
    scores, context = attention.scores, attention.context
    schedule.annotate(scores, MARK, 1)
    n_groups = _n_groups(attention.n_heads, n_cores)
    _pad(schedule, scores, tile.n_rows * n_groups, tile.n_score_vectors * lanes)
    _pad(schedule, context, tile.n_rows * n_groups, tile.n_value_vectors * lanes)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        if is_free_to_inline(schedule, block):
            schedule.compute_inline(block)
    queries, keys, values = _copies(schedule, scores, context)
    chain = _between(schedule, scores, context)
    (last,) = schedule.get_output_blocks(schedule.get_sblock("root"))
    _merge_rows(schedule, last)
    nests = []
    for product, n_vectors in (
        (scores, tile.n_score_vectors),
        (context, tile.n_value_vectors),
    ):
        *heads, rows, columns, reduced = schedule.get_loops(product)
        groups, row_tiles, row = schedule.split(rows, [n_groups, None, tile.n_rows])
        panels, vectors, vector = schedule.split(columns, [None, n_vectors, lanes])
        schedule.reorder(*heads, groups, row_tiles, panels, reduced, row, vectors, vector)
        schedule.fuse(*heads, groups)
        schedule.unroll(row)
        schedule.unroll(vectors)
        schedule.vectorize(vector)
        nests.append((row_tiles, product, reduced))
    row_tiles = schedule.merge(*(loop for loop, _, _ in nests))
    job = schedule.get_loops(scores)[0]
    for block in (*reversed(chain), queries):
        schedule.compute_at(block, row_tiles, preserve_unit_loops=True)
    schedule.reverse_compute_at(last, row_tiles, preserve_unit_loops=True)
    for block in (keys, values):
        schedule.compute_at(block, job, preserve_unit_loops=True)
    if n_cores > 1:
        schedule.parallel(job)
    for _, product, reduced in nests:
        schedule.decompose_reduction(product, reduced)


def _n_groups(n_heads: int, n_cores: int) -> int:
    """Return the groups of rows of a head that are jobs of their own."""
    return next(n for n in range(1, n_cores + 1) if n * n_heads % n_cores == 0)


def _pad(schedule: Schedule, product: SBlockRV, n_rows: int, width: int) -> None:
    """Pad rows and columns of a product to multiples."""
    *others, rows, columns = extents_of(schedule, product, SPATIAL)
    if rows % n_rows or columns % width:
        schedule.pad_einsum(product, [*(1 for _ in others), n_rows, width, 1])
        (crop,) = schedule.get_consumers(product)
        if schedule.get_consumers(crop):
            schedule.compute_inline(crop)


def _copies(schedule: Schedule, scores: SBlockRV, context: SBlockRV) -> list[SBlockRV]:
    """Return the blocks that copy queries, keys and values."""
    *_, rows, _ = axes_of(schedule, scores, SPATIAL)
    queries = _copy(schedule, scores, rows.var)
    keys = _copy(schedule, scores, axes_of(schedule, scores, SPATIAL)[-1].var)
    values = _copy(schedule, context, axes_of(schedule, context, SPATIAL)[-1].var)
    return [queries, keys, values]


def _copy(schedule: Schedule, product: SBlockRV, axis: Any) -> SBlockRV:
    """Return the block that copies the operand with an axis."""
    for index, region in enumerate(schedule.get(product).reads):
        if not any(uses(each.min, axis) for each in region.region):
            continue
        for producer in schedule.get_producers(product):
            (write,) = schedule.get(producer).writes
            if write.source.same_as(region.source):
                return producer
        return schedule.cache_read(product, index, "global")
    raise ScheduleError("the product has other operands")


def _merge_rows(schedule: Schedule, last: SBlockRV) -> None:
    """Let the block that writes the result run over whole rows where it splits them in two axes.

    The rows of an image are its height and width, of which a tile of rows covers no rectangle.
    """
    block = schedule.get(last)
    analyzer = Analyzer()
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom)
    places = [analyzer.simplify(each.min) for each in block.reads[0].region]
    if isinstance(places[-2], tirx.Var):
        return
    variables = [axis.var for axis in block.iter_vars]
    moving = [place for place in places if not isinstance(place, tirx.IntImm)]
    schedule.transform_block_layout(last, tirx.IndexMap(variables, moving, None))


def _between(schedule: Schedule, scores: SBlockRV, context: SBlockRV) -> list[SBlockRV]:
    """Return the blocks from one product to the other, in their order."""
    names = {name_of(schedule, scores)}
    between = []
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        if name_of(schedule, block) == name_of(schedule, context):
            break
        if names & {name_of(schedule, each) for each in schedule.get_producers(block)}:
            names.add(name_of(schedule, block))
            between.append(block)
    return between


def _is_product(schedule: Schedule, block: SBlockRV) -> bool:
    value: Any = getattr(schedule.get(block).body, "value", None)
    return (
        len(extents_of(schedule, block, REDUCTION)) == 1
        and type(value).__name__ == "Add"
        and type(value.b).__name__ == "Mul"
        and len(schedule.get(block).reads) == _N_PRODUCTS
    )
