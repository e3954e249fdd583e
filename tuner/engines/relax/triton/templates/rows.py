"""Reductions along rows, such as softmax and normalisations, as one kernel.

A block holds some whole rows: every reduction of the workload is one along them, and what is
computed from several is computed once. Blocks share the elements of a long row: a kernel stores the
parts of reductions, and the next one combines them before it computes what follows.
"""

import itertools
import math
from collections.abc import Sequence
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
from tuner.engines.relax.triton.programs import WORKSPACE, Kernel, Program
from tuner.engines.relax.triton.templates.configurations import Decisions
from tuner.engines.relax.triton.templates.contractions import (
    extent_of,
    joined,
    parts_of,
    split,
    variables_of,
)

_INDEX = "int64"
#: Most elements of a row that a block holds.
MAX_ROW = 16384
# Parts of a row, and the fewest elements of one.
_MAX_PARTS, _MIN_PART = 1024, 1024
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
        n_splits: Parts of the rows that blocks of their own hold; a kernel for each reduction that
            follows from another one combines them.
    """

    family = "triton-rows"
    pattern = r"(?P<rows>\d\d?)-(?P<n_warps>\d\d?)(?:-sk(?P<n_splits>\d{1,4}))?"
    rows: int
    n_warps: int
    n_splits: int = 1

    @property
    def name(self) -> str:
        """Name with every decision."""
        splits = f"-sk{self.n_splits}" if self.n_splits > 1 else ""
        return f"{self.family}-{self.rows}-{self.n_warps}{splits}"


@dataclass(frozen=True)
class Rows:
    """Reductions of a workload along the same rows.

    Attributes:
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
            and (_MIN_ROW if len(blocks.reductions) == 1 else 2) <= width <= MAX_ROW * _MAX_PARTS
            and n_rows * width <= largest  # rows of a product share their operands
        )
        return cls(blocks, n_rows, width) if fits else None

    @property
    def flop(self) -> float:
        """Floating-point operations: one for each element and reduction."""
        return float(len(self.blocks.reductions) * self.n_rows * self.width)

    @property
    def stages(self) -> list[list[Block]]:
        """Reductions that do not follow from each other, and the ones that follow from them."""
        depths: list[int] = []
        for block in self.blocks.reductions:
            read = [
                depth
                for each, depth in zip(self.blocks.reductions, depths, strict=False)
                if self.blocks.reads(each.buffer, block.value, {}, []) is not None
            ]
            depths.append(1 + max(read, default=-1))
        pairs = list(zip(self.blocks.reductions, depths, strict=True))
        return [[block for block, at in pairs if at == depth] for depth in sorted(set(depths))]


def print_program(rows: Rows, configuration: Configuration) -> Program:
    """Print the kernels of reductions along rows.

    Raises:
        PrintError: If a part of the workload has no form in Triton.
    """
    if configuration.n_splits == 1:
        return Program((_Source(rows, configuration).outputs(),))
    kernels: list[Kernel] = []
    stored: list[Block] = []
    for stage in rows.stages:
        kernels.append(_Source(rows, configuration, stored).parts(stage))
        stored = [*stored, *stage]
    kernels.append(_Source(rows, configuration, stored).outputs())
    shape = (len(stored), rows.n_rows * configuration.n_splits)
    return Program((*kernels,), shape, _total_of(stored))


def _total_of(blocks: Sequence[Block]) -> str:
    """Return the type of the parts of reductions."""
    total, *different = {reduction_of(block)[2] for block in blocks}
    if different:
        raise PrintError("reductions of several types have no parts")
    return total


@dataclass
class _Source:
    """Source of one kernel.

    Attributes:
        of: Reductions of the workload.
        by: Decisions.
        stored: Reductions whose parts kernels before it stored.
    """

    of: Rows
    by: Configuration
    stored: Sequence[Block] = ()

    def __post_init__(self) -> None:
        of, by = self.of, self.by
        self._row, self._column = Var("m", _INDEX), Var("n", _INDEX)
        self._size = int(_part_sizes(of, by.n_splits))
        n_held = self._size * by.n_splits
        mask = f"(m < {of.n_rows})" if of.n_rows % by.rows else ""
        column_mask = f"(n < {of.width})" if of.width != n_held else ""
        self._tiles = [
            Tile(self._row, of.n_rows, "m", mask),
            Tile(self._column, of.width, "n", column_mask),
        ]
        self._arguments = Arguments(of.blocks.function)
        self._printer = RowPrinter(of.blocks, self._tiles, self._arguments)
        self._printer.stored = self.stored
        self._printer.sizes = (of.n_rows, by.n_splits)

    def parts(self, stage: Sequence[Block]) -> Kernel:
        """Return the kernel that stores the parts of some reductions."""
        stores = []
        mask = self._printer.mask_of([key(self._row)])
        guard = f", mask={mask}" if mask else ""
        for place, block in enumerate(stage, len(self.stored)):
            text = self._printer.reduction(block, split(block.axes, self._row))
            at = f"({place * self.of.n_rows} + m) * {self.by.n_splits} + part"
            stores.append(f"tl.store({WORKSPACE} + {at}, {text.code}{guard})")
        return self._printed(stores)

    def outputs(self) -> Kernel:
        """Return the kernel that computes and stores the outputs."""
        rows, by, printer = self.of, self.by, self._printer
        stores = []
        for output in rows.blocks.outputs:
            is_whole = extent_of(output.axes) > rows.n_rows
            values = split(output.axes, self._row)
            if is_whole:
                values = _place(rows, output, self._row, self._column)
            variables = [axis.variable for axis in output.axes]
            at = [substitute(each, values, variables) for each in output.indices]
            text = printer.element(output.buffer, at)
            where = printer.offset(output.buffer, at)
            needed = {key(tile.variable) for tile in self._tiles[: 1 + is_whole]}
            if not text.tiles <= needed:
                raise PrintError("an output is not computed row by row")
            guard = printer.mask_of(needed)
            dtype = element_type(str(output.buffer.dtype))
            shape = (by.rows, self._size if is_whole else 1)
            stored = f"tl.broadcast_to(({text.code}).to({dtype}), {shape})"
            beside = f" + tl.zeros({shape}, tl.int32)"
            pointer = f"{self._arguments.name(output.buffer)} + {where.code}{beside}"
            masked = f", mask={guard}" if guard else ""
            stores.append(f"tl.store({pointer}, {stored}{masked})")
        is_shared = any(extent_of(each.axes) > rows.n_rows for each in rows.blocks.outputs)
        return self._printed(stores, is_shared=is_shared)

    def _printed(self, stores: Sequence[str], *, is_shared: bool = True) -> Kernel:
        """Return the kernel of what the printer printed and some stores.

        Args:
            stores: Statements at the end.
            is_shared: False if a block computes some rows alone, although they have parts.
        """
        by, n_tiles = self.by, -(-self.of.n_rows // self.by.rows)
        tile, n_parts = "tl.program_id(0)", 1
        lines = [f"n = tl.arange(0, {self._size})[None, :]"]
        if by.n_splits > 1 and is_shared:
            # Rows beside each other are read at the same time: those of groups share cache lines.
            tile, n_parts = f"tl.program_id(0) % {n_tiles}", by.n_splits
            lines = [
                f"part = tl.program_id(0) // {n_tiles}",
                f"n = (part * {self._size} + tl.arange(0, {self._size}))[None, :]",
            ]
        lines.insert(0, f"m = ({tile} * {by.rows} + tl.arange(0, {by.rows}))[:, None]")
        lines += [*self._printer.lines, *stores]
        workspace = _total_of(self.of.blocks.reductions) if by.n_splits > 1 else ""
        launch = (n_tiles * n_parts, by.n_warps, 1)
        return print_kernel(
            "triton_rows", lines, self._arguments, self._printer.helpers, launch, workspace
        )


def _part_sizes(rows: Rows, n_splits: Any) -> Any:
    """Return the elements of tiles that hold a part of a row, powers of two."""
    return 2 ** np.ceil(np.log2(np.ceil(rows.width / n_splits))).astype(int)


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
    """Printer that computes reductions where they are read, or combines their parts.

    Attributes:
        stored: Reductions whose parts are in the workspace.
        sizes: Rows, and parts of each.
    """

    stored: Sequence[Block] = ()
    sizes = (1, 1)

    def reduction(self, block: Block, values: dict[int, Any]) -> Text:
        """Return the name of a reduction for the rows of a block."""
        _, neutral, dtype = reduction_of(block)
        if any(block is each for each in self.stored):
            return self._combined(block, values)
        column = self.tiles[-1]
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
            code = f"tl.where({column.mask}, {code}, {neutral})"
        return self._reduced(block, code)

    def _combined(self, block: Block, values: dict[int, Any]) -> Text:
        """Return the name of a reduction, given its axes, from its parts."""
        n_rows, n_parts = self.sizes
        _, neutral, _ = reduction_of(block)
        number: Any = tirx.const([*map(id, self.stored)].index(id(block)) * n_rows, _INDEX)
        stride = 1
        for axis in reversed(block.axes):
            number = number + values[key(axis.variable)] * tirx.const(stride, _INDEX)
            stride *= axis.extent
        row = self.index(number)
        parts = f"tl.arange(0, {1 << (n_parts - 1).bit_length()})[None, :]"
        masks = [self.mask_of(row.tiles), f"({parts} < {n_parts})"]
        mask = " & ".join(each for each in masks if each)
        at = f"{WORKSPACE} + {row.code} * {n_parts} + {parts}"
        return self._reduced(block, f"tl.load({at}, mask={mask}, other={neutral})")

    def _reduced(self, block: Block, code: str) -> Text:
        """Return the name of what some elements of each row reduce to."""
        name, _, dtype = reduction_of(block)
        line = f"{self.prefix}{len(self.lines)}"
        if combine := _KEEPING_NAN.get(name, ""):
            self.helpers.add(combine)
        reduced = f"tl.reduce({code}, 1, {combine})" if combine else f"tl.{name}({code}, 1)"
        self.lines.append(f"{line} = {reduced}[:, None]")
        return Text(line, dtype, frozenset(key(row.variable) for row in self.tiles[:-1]))


def reduction_of(block: Block) -> tuple[str, str, str]:
    """Return the function of a reduction, the number that it begins with, and its type.

    Raises:
        PrintError: If it has no form in Triton.
    """
    kind = next((each for each in _REDUCTIONS if isinstance(block.value, each)), None)
    if kind is None:
        raise PrintError(f"{block.buffer.name} is not a sum, a maximum or a minimum")
    function, neutral = _REDUCTIONS[kind]
    dtype = str(block.buffer.dtype)
    if "float" in dtype:
        return function, f'float("{neutral}")' if neutral else "0", "float32"
    limits = tirx.min_value(dtype), tirx.max_value(dtype)
    return function, str(int(limits[neutral > 0].value)) if neutral else "0", dtype


def others(block: Block) -> Any:
    """Return what a reduction combines with its value so far."""
    for own, other in ((block.value.a, block.value.b), (block.value.b, block.value.a)):
        if hasattr(own, "source") and own.source.same_as(block.buffer):
            return other
    raise PrintError(f"{block.buffer.name} is not a reduction")


def ranked(rows: Rows, architecture: int, cache_bytes: int = 0) -> list[Configuration]:
    """Return the configurations of some rows, the fastest by estimate first."""
    sizes = [1 << n for n in range(int(math.log2(_MIN_PART)), int(math.log2(MAX_ROW)) + 1)]
    splits = {-(-rows.width // size) for size in sizes} | {1}
    choices = (1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16), sorted(splits)
    decisions = np.array(list(itertools.product(*choices)))
    n_rows, warps, n_splits = decisions.T
    size = _part_sizes(rows, n_splits)
    is_small = (n_rows == 1) | ((n_rows < 2 * rows.n_rows) & (n_splits == 1))
    is_held = (size <= MAX_ROW) & (n_rows * size <= _MAX_KEPT * gpus.WARP * warps)
    decisions = decisions[is_small & is_held & (n_splits <= _MAX_PARTS)]
    secs = estimate_secs(rows, decisions, gpus.gpu_of(architecture, cache_bytes))
    order = np.argsort(secs, kind="stable")
    return [Configuration(*each) for each in decisions[order].tolist()]


def estimate_secs(rows: Rows, decisions: np.ndarray, gpu: gpus.Gpu) -> np.ndarray:
    """Estimate the times of configurations, in seconds; see :class:`Template`."""
    n_rows, warps, n_splits = decisions.T.astype(float)
    kept = n_rows * _part_sizes(rows, n_splits) / (gpus.WARP * warps)
    n_blocks = np.ceil(rows.n_rows / n_rows) * n_splits
    n_resident = gpu.n_resident(0, 2 * kept, warps)
    # Warps that share a row wait for each other.
    block = _KEPT_SECS * kept + _SHARED_ROW_SECS * (warps > 1) + _WARP_SECS * warps
    n_waves = np.ceil(n_blocks / (gpu.n_multiprocessors * n_resident))
    n_later = np.ceil(n_blocks / gpu.n_multiprocessors) - 1
    secs = _START_SECS + _BLOCK_SECS * n_later + n_waves * block
    n_kernels = np.where(n_splits > 1, len(rows.stages) + 1, 1)
    # Each kernel reads the rows, and the last one writes as many numbers.
    n_bytes = max(
        math.prod(map(int, each.shape)) * gpus.BYTES.get(str(each.dtype), 4)
        for each in rows.blocks.function.params
    )
    moved = (n_kernels + 1) * n_bytes / gpus.CACHE_BYTES_PER_SEC
    estimates: np.ndarray = np.hypot(n_kernels * secs, moved)
    return estimates
