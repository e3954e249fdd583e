"""Reductions along rows, such as softmax and normalisations, as one kernel.

A block holds some whole rows: every reduction of the workload is one along them, and what is
computed from several is computed once.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from tvm import tirx
from tvm.tirx import PrimFunc, Var

from tuner.engines.relax.triton import gpus
from tuner.engines.relax.triton.expressions.kernel_blocks import (
    Axis,
    Block,
    KernelBlocks,
    key,
    substitute,
)
from tuner.engines.relax.triton.expressions.printer import (
    Arguments,
    Printer,
    PrintError,
    Text,
    Tile,
    element_type,
    print_kernel,
)
from tuner.engines.relax.triton.programs import Program
from tuner.engines.relax.triton.templates.configurations import Decisions
from tuner.engines.relax.triton.templates.contractions import (
    extent_of,
    joined,
    parts_of,
    split,
    variables_of,
)

_INDEX = "int64"
#: Most elements of a row.
MAX_ROW = 16384
# Shorter rows with one reduction are windows. Elements that a thread keeps.
_MIN_ROW, _MAX_KEPT = 32, 64
# Constants of times, see gpus: a kernel, each block of a multiprocessor but the first, an element
# of a thread, rows that warps share, and a warp.
_START_SECS, _BLOCK_SECS, _KEPT_SECS = 0.88e-6, 77e-9, 13e-9
_SHARED_ROW_SECS, _WARP_SECS = 0.4e-6, 24e-9
# Functions of reductions, and the values that they begin with.
_REDUCTIONS = {
    tirx.Add: ("sum", 0.0),
    tirx.Max: ("max", -math.inf),
    tirx.Min: ("min", math.inf),
}
# Helpers of reductions that lose NaN.
_KEEPING_NAN = {"max": "_largest", "min": "_smallest"}


@dataclass(frozen=True)
class Configuration(Decisions):
    """Decisions of reductions along rows.

    Attributes:
        rows: Rows of a block, a power of two.
        n_warps: Warps of a block.
    """

    family = "triton-rows"
    rows: int
    n_warps: int


@dataclass(frozen=True)
class Rows:
    """Reductions of a workload along the same rows.

    Attributes:
        blocks: Blocks of the workload.
        n_rows: Number of rows.
        width: Elements of a row.
    """

    blocks: KernelBlocks
    n_rows: int
    width: int

    @classmethod
    def find(cls, function: PrimFunc) -> Self | None:
        """Return the rows of a workload; None unless all its reductions are along rows."""
        blocks = KernelBlocks.of(function)
        if blocks is None or not blocks.reductions:
            return None
        sizes = {(extent_of(each.axes), extent_of(each.reduced)) for each in blocks.reductions}
        if len(sizes) != 1:
            return None
        n_rows, width = sizes.pop()
        outputs = {extent_of(each.axes) for each in blocks.outputs}
        largest = max(math.prod(map(int, each.shape)) for each in function.params)
        fits = (
            outputs <= {n_rows, n_rows * width}
            and (_MIN_ROW if len(blocks.reductions) == 1 else 2) <= width <= MAX_ROW
            and n_rows * width <= largest  # rows of a product share their operands
        )
        return cls(blocks, n_rows, width) if fits else None

    @property
    def flop(self) -> float:
        """Floating-point operations: one for each element and reduction."""
        return float(len(self.blocks.reductions) * self.n_rows * self.width)


def print_program(rows: Rows, configuration: Configuration) -> Program:
    """Print the kernel of reductions along rows.

    Raises:
        PrintError: If a part of the workload has no form in Triton.
    """
    row, column = Var("m", _INDEX), Var("n", _INDEX)
    size = 1 << (rows.width - 1).bit_length()
    mask = f"(m < {rows.n_rows})" if rows.n_rows % configuration.rows else ""
    column_mask = f"(n < {rows.width})" if rows.width != size else ""
    tiles = [Tile(row, rows.n_rows, "m", mask), Tile(column, rows.width, "n", column_mask)]
    arguments = Arguments(rows.blocks.function)
    printer = RowPrinter(rows.blocks, tiles, arguments)
    n_rows = configuration.rows
    lines = [
        f"m = (tl.program_id(0) * {n_rows} + tl.arange(0, {n_rows}))[:, None]",
        f"n = tl.arange(0, {size})[None, :]",
    ]
    stores = []
    for output in rows.blocks.outputs:
        is_whole = extent_of(output.axes) > rows.n_rows
        values = _place(rows, output, row, column) if is_whole else split(output.axes, row)
        variables = [axis.variable for axis in output.axes]
        at = [substitute(each, values, variables) for each in output.indices]
        text = printer.element(output.buffer, at)
        where = printer.offset(output.buffer, at)
        needed = {key(tile.variable) for tile in (tiles if is_whole else tiles[:1])}
        if not text.tiles <= needed:
            raise PrintError("an output is not computed row by row")
        guard = printer.mask_of(needed)
        dtype = element_type(str(output.buffer.dtype))
        shape = (configuration.rows, size if is_whole else 1)
        stored = f"tl.broadcast_to(({text.code}).to({dtype}), {shape})"
        beside = f" + tl.zeros({shape}, tl.int32)"
        pointer = f"{arguments.name(output.buffer)} + {where.code}{beside}"
        masked = f", mask={guard}" if guard else ""
        stores.append(f"tl.store({pointer}, {stored}{masked})")
    lines += [*printer.lines, *stores]
    grid = -(-rows.n_rows // configuration.rows)
    options = (grid, configuration.n_warps, 1)
    return Program((print_kernel("triton_rows", lines, arguments, printer.helpers, options),))


def _place(rows: Rows, output: Block, row: Any, column: Any) -> dict[int, Any]:
    """Return the axes of an output by the number of a row and of an element in it.

    An output that is not computed from a reduction has the rows of another of its shape.
    """
    first = rows.blocks.reductions[0].buffer
    shape = [axis.extent for axis in output.axes]
    for each in (output, *rows.blocks.outputs):
        at = rows.blocks.reads(first, each.value, {}, [])
        if at is not None and [axis.extent for axis in each.axes] == shape:
            break
    else:
        raise PrintError("an output is not computed from a reduction")
    variables = [axis.variable for axis in each.axes]
    keys = {key(each) for index in at for each in variables_of(index)}
    of_row: list[Axis] = []
    of_column: list[Axis] = []
    parts = [parts_of(axis, at) for axis in each.axes]
    for first_part, *rest in parts:
        is_row = bool(rest) or key(first_part.variable) in keys
        (of_row if is_row else of_column).append(first_part)
        of_column += rest
    if extent_of(of_column) != rows.width or not keys <= set(map(key, variables)):
        raise PrintError("an output is not computed row by row")
    values = split(of_row, row) | split(of_column, column)
    inside = [axis.variable for axis in (*of_row, *of_column)]
    return {
        key(axis.variable): substitute(joined(each), values, inside)
        for axis, each in zip(output.axes, parts, strict=True)
    }


class RowPrinter(Printer):
    """Printer that computes reductions where they are read."""

    def reduction(self, block: Block, values: dict[int, Any]) -> Text:
        """Return the name of a reduction for the rows of a block."""
        name, neutral, dtype = reduction_of(block)
        *rows, column = self.tiles
        places = [each for axis in block.axes for each in variables_of(values[key(axis.variable)])]
        if key(column.variable) in map(key, places):
            raise PrintError(f"{block.buffer.name} is not reduced along the same axes as the rows")
        read = others(block)
        inner = values | split(block.reduced, column.variable)
        variables = [axis.variable for axis in (*block.axes, *block.reduced)]
        text = self.value(read, inner, variables, ())
        if not {key(column.variable)} <= text.tiles:
            raise PrintError(f"{block.buffer.name} is not a reduction along rows")
        code = f"({text.code}).to({element_type(dtype)})"
        if column.mask:
            number = f'float("{neutral}")' if neutral else "0"
            code = f"tl.where({column.mask}, {code}, {number})"
        line = f"{self.prefix}{len(self.lines)}"
        if combine := _KEEPING_NAN.get(name, ""):
            self.helpers.add(combine)
        reduced = f"tl.reduce({code}, 1, {combine})" if combine else f"tl.{name}({code}, 1)"
        self.lines.append(f"{line} = {reduced}[:, None]")
        return Text(line, dtype, frozenset(key(row.variable) for row in rows))


def reduction_of(block: Block) -> tuple[str, float, str]:
    """Return the function of a reduction, the value that it begins with, and its type.

    Raises:
        PrintError: If it has no form in Triton.
    """
    kind = next((each for each in _REDUCTIONS if isinstance(block.value, each)), None)
    if kind is None:
        raise PrintError(f"{block.buffer.name} is not a sum, a maximum or a minimum")
    function, neutral = _REDUCTIONS[kind]
    dtype = str(block.buffer.dtype)
    if "float" in dtype:
        return function, neutral, "float32"
    if neutral:
        raise PrintError("extremes of integers have no form here")
    return function, neutral, dtype


def others(block: Block) -> Any:
    """Return what a reduction combines with its value so far."""
    for own, other in ((block.value.a, block.value.b), (block.value.b, block.value.a)):
        if hasattr(own, "source") and own.source.same_as(block.buffer):
            return other
    raise PrintError(f"{block.buffer.name} is not a reduction")


def ranked(rows: Rows, architecture: int) -> list[Configuration]:
    """Return the configurations of some rows, the fastest by estimate first."""
    size = 1 << (rows.width - 1).bit_length()
    decisions = np.array(list(itertools.product((1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16))))
    n_rows, warps = decisions.T
    is_small = (n_rows == 1) | (n_rows < 2 * rows.n_rows)
    decisions = decisions[is_small & (n_rows * size <= _MAX_KEPT * gpus.WARP * warps)]
    secs = estimate_secs(rows, decisions, gpus.gpu_of(architecture))
    order = np.argsort(secs, kind="stable")
    return [Configuration(*each) for each in decisions[order].tolist()]


def estimate_secs(rows: Rows, decisions: np.ndarray, gpu: gpus.Gpu) -> np.ndarray:
    """Estimate the time of configurations inside of a graph, in seconds.

    Args:
        rows: Rows.
        decisions: Numbers of each :class:`Configuration`, shape (n, 2).
        gpu: GPU.

    Returns:
        Times, shape (n,).
    """
    n_rows, warps = decisions.T.astype(float)
    kept = n_rows * (1 << (rows.width - 1).bit_length()) / (gpus.WARP * warps)
    n_blocks = np.ceil(rows.n_rows / n_rows)
    n_resident = gpu.n_resident(0, 2 * kept, warps)
    # Warps that share a row wait for each other.
    block = _KEPT_SECS * kept + _SHARED_ROW_SECS * (warps > 1) + _WARP_SECS * warps
    n_waves = np.ceil(n_blocks / (gpu.n_multiprocessors * n_resident))
    n_later = np.ceil(n_blocks / gpu.n_multiprocessors) - 1
    secs: np.ndarray = _START_SECS + _BLOCK_SECS * n_later + n_waves * block
    return secs
