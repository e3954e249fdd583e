"""Parts of a program that need little memory: they compute one slab of the output each."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from tuner.engines.verification.interpreter.index_arithmetic import Range, Ranges
from tuner.engines.verification.interpreter.program import (
    Block,
    Buffer,
    Load,
    Program,
    Store,
    Variable,
    expressions,
)

#: Elements of the spatial axes of a block that a slab needs, by axis.
Box = dict[Variable, range]

# Intermediate elements that a slab may have; each has a value and an error in float64.
_MAX_ELEMENTS = 1 << 24


def slabs(program: Program, blocks: Sequence[Block]) -> list[dict[Block, Box]]:
    """Cut a program into slabs of its output, each with what it needs of every block.

    The rows of an attention, for example, depend on those of the scores alone.

    Args:
        blocks: Its blocks over plain loops, one after the other.

    Returns:
        For each slab, the elements of the blocks to compute; one slab without any entry if the
        program is small, or of another form.
    """
    stores = {block: store for block in blocks if (store := _only_store(block)) is not None}
    written = {store.buffer for store in stores.values()}
    intermediates = written - set(program.outputs)
    n_elements = sum(math.prod(buffer.shape) for buffer in intermediates)
    if len(written) < len(blocks):
        return [{}]  # a block of another form, or two that write one buffer
    if n_elements <= _MAX_ELEMENTS or len(program.outputs) != 1:
        return [{}]
    (output,) = program.outputs
    ranges = Ranges(program)
    best: list[dict[Block, Box]] = [{}]
    # More are hardly worth what slabs share and compute again.
    fewest = n_elements // 2
    for axis, extent in enumerate(output.shape):
        n_slabs = min(extent, -(-n_elements // _MAX_ELEMENTS))
        if n_slabs == 1:
            continue
        cuts = [index * extent // n_slabs for index in range(n_slabs + 1)]
        whole = [range(size) for size in output.shape]
        parts = [
            _needed(stores, output, [*whole[:axis], range(*cut), *whole[axis + 1 :]], ranges)
            for cut in pairwise(cuts)
        ]
        most = max(_n_elements(stores, intermediates, part) for part in parts)
        if most < fewest:
            best, fewest = parts, most
    return best


def _only_store(block: Block) -> Store | None:
    """Return the store of a block that writes one buffer, at its spatial axes."""
    if len(block.body) != 1 or not all(isinstance(each, Store) for each in block.init):
        return None
    (store,) = block.body
    if not isinstance(store, Store):
        return None
    if any(isinstance(each, Store) and each.indices != store.indices for each in block.init):
        return None
    return store if list(store.indices) == _spatial(block) else None


def _spatial(block: Block) -> list[Variable]:
    return [axis.variable for axis in block.axes if not axis.is_reduction]


def _needed(
    stores: dict[Block, Store], output: Buffer, part: Sequence[range], ranges: Ranges
) -> dict[Block, Box]:
    """Return what a part of the output needs of each block."""
    needed: dict[Buffer, list[range]] = {output: list(part)}
    boxes: dict[Block, Box] = {}
    for block, store in reversed(stores.items()):
        of_buffer = needed.get(store.buffer, [range(0)] * len(store.buffer.shape))
        boxes[block] = dict(zip(_spatial(block), of_buffer, strict=True))
        inside = ranges.within(
            {variable: (each.start, each.stop - 1) for variable, each in boxes[block].items()}
        )
        for load in _loads(block):
            if load.buffer is store.buffer:
                continue
            read = [
                _clipped(inside.of(index), extent)
                for index, extent in zip(load.indices, load.buffer.shape, strict=True)
            ]
            before = needed.get(load.buffer)
            needed[load.buffer] = (
                read
                if before is None
                else [
                    range(min(one.start, other.start), max(one.stop, other.stop))
                    for one, other in zip(before, read, strict=True)
                ]
            )
    return boxes


def _loads(block: Block) -> Iterator[Load]:
    for statement in (*block.init, *block.body):
        if isinstance(statement, Store):
            for expression in (*statement.indices, statement.value):
                yield from (each for each in expressions(expression) if isinstance(each, Load))


def _clipped(span: Range | None, extent: int) -> range:
    """Return the positions that an index may have; all where it is unknown."""
    if span is None:
        return range(extent)
    return range(min(max(span[0], 0), extent - 1), min(max(span[1], 0), extent - 1) + 1)


def _n_elements(
    stores: dict[Block, Store], intermediates: set[Buffer], boxes: Mapping[Block, Box]
) -> int:
    return sum(
        math.prod(map(len, boxes[block].values()))
        for block, store in stores.items()
        if store.buffer in intermediates
    )
