"""Reductions of windows, such as depthwise convolutions and pooling, as one kernel.

A block computes some elements of the output, and each thread goes through the windows of its
elements: there is nothing for tensor cores to share.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from tvm.tirx import PrimFunc, Var

from tuner.engines.relax.triton import gpus
from tuner.engines.relax.triton.expressions.kernel_blocks import (
    Block,
    KernelBlocks,
    key,
    substitute,
)
from tuner.engines.relax.triton.expressions.printer import (
    Arguments,
    Printer,
    Text,
    Tile,
    element_type,
    print_kernel,
)
from tuner.engines.relax.triton.programs import Program
from tuner.engines.relax.triton.templates.configurations import Decisions
from tuner.engines.relax.triton.templates.contractions import extent_of, split
from tuner.engines.relax.triton.templates.rows import others, reduction_of

_INDEX = "int64"
_MAX_STEPS, _MAX_UNROLLED = 128, 25
# Times that were fitted to 536 kernels of depthwise convolutions on an H200: loads of a turn until
# they arrive, a number of an element of a thread, and, of a multiprocessor, that of any element and
# a weight. First choices took 1.09 times the best on workloads that were left out, at worst 1.25.
_TURN_SECS, _STEP_SECS, _LOAD_SECS, _WEIGHT_SECS = 0.44e-6, 4.9e-9, 25e-12, 59e-12
_BUSY_WARPS = 32
# Elements of a thread: few leave the loads of a window without neighbours, many need registers.
_MIN_KEPT, _MAX_KEPT = 1, 16


@dataclass(frozen=True)
class Configuration(Decisions):
    """Decisions of reductions of windows.

    Attributes:
        rows: Elements of a block along all axes of the output but the last, a power of two.
        columns: Elements of a block along the last axis, a power of two.
        n_warps: Warps of a block.
    """

    family = "triton-windows"
    rows: int
    columns: int
    n_warps: int


@dataclass(frozen=True)
class Windows:
    """A workload with one reduction of few numbers for each element.

    Attributes:
        n_rows: Elements of the output along all axes but the last.
        n_columns: Elements along the last axis.
    """

    blocks: KernelBlocks
    block: Block
    n_rows: int
    n_columns: int

    @classmethod
    def find(cls, function: PrimFunc) -> Self | None:
        """Return the windows of a workload; None if it is something else."""
        blocks = KernelBlocks.of(function)
        if blocks is None or len(blocks.reductions) != 1:
            return None
        (block,) = blocks.reductions
        shapes = {tuple(axis.extent for axis in each.axes) for each in blocks.outputs}
        if len(shapes) != 1 or not 1 < extent_of(block.reduced) <= _MAX_STEPS:
            return None
        (shape,) = shapes
        return cls(blocks, block, math.prod(shape[:-1]), shape[-1]) if shape else None

    @property
    def n_steps(self) -> int:
        """Numbers of a window."""
        return extent_of(self.block.reduced)

    @property
    def flop(self) -> float:
        """Floating-point operations: two for each number of a window."""
        return 2.0 * self.n_rows * self.n_columns * self.n_steps


def print_program(windows: Windows, configuration: Configuration) -> Program:
    """Print the kernel of reductions of windows.

    Raises:
        PrintError: If a part of the workload has no form in Triton.
    """
    by = configuration
    row, column = Var("m", _INDEX), Var("n", _INDEX)
    row_mask = f"(m < {windows.n_rows})" if windows.n_rows % by.rows else ""
    column_mask = f"(n < {windows.n_columns})" if windows.n_columns % by.columns else ""
    tiles = [
        Tile(row, windows.n_rows, "m", row_mask),
        Tile(column, windows.n_columns, "n", column_mask),
    ]
    arguments = Arguments(windows.blocks.function)
    printer = _WindowPrinter(windows.blocks, tiles, arguments)
    printer.shape = (by.rows, by.columns)
    n_column_tiles = -(-windows.n_columns // by.columns)
    lines = [
        "pid = tl.program_id(0)",
        f"m = (pid // {n_column_tiles} * {by.rows} + tl.arange(0, {by.rows}))[:, None]",
        f"n = (pid % {n_column_tiles} * {by.columns} + tl.arange(0, {by.columns}))[None, :]",
    ]
    stores = []
    everywhere = [key(tile.variable) for tile in tiles]
    for output in windows.blocks.outputs:
        values = split(output.axes[:-1], row) | split(output.axes[-1:], column)
        variables = [axis.variable for axis in output.axes]
        at = [substitute(each, values, variables) for each in output.indices]
        text, where = printer.element(output.buffer, at), printer.offset(output.buffer, at)
        dtype = element_type(str(output.buffer.dtype))
        mask = printer.mask_of(everywhere)
        guard = f", mask={mask}" if mask else ""
        beside = f" + tl.zeros({printer.shape}, tl.int32)"
        pointer = f"{arguments.name(output.buffer)} + {where.code}{beside}"
        stores.append(f"tl.store({pointer}, ({text.code}).to({dtype}){guard})")
    lines += [*printer.lines, *stores]
    grid = -(-windows.n_rows // by.rows) * n_column_tiles
    options = (grid, by.n_warps, 1)
    return Program((print_kernel("triton_windows", lines, arguments, printer.helpers, options),))


class _WindowPrinter(Printer):
    """Printer that computes the reduction in a loop where it is read."""

    shape: tuple[int, int]

    def reduction(self, block: Block, values: dict[int, Any]) -> Text:
        """Return the name of the reduction for the elements of a block."""
        function, neutral, total = reduction_of(block)
        tap, n_steps = Var("t", _INDEX), extent_of(block.reduced)
        inside = Printer(
            self.blocks, [*self.tiles, Tile(tap, n_steps, "t")], self.arguments,
            helpers=self.helpers, prefix=f"{self.prefix}t",
        )  # fmt: skip
        variables = [axis.variable for axis in (*block.axes, *block.reduced)]
        text = inside.value(others(block), values | split(block.reduced, tap), variables, ())
        name = f"{self.prefix}{len(self.lines)}"
        value = f"({text.code}).to({element_type(total)})"
        nan = ", propagate_nan=tl.PropagateNan.ALL" if total == "float32" else ""
        step = (
            f"{name} + {value}" if function == "sum" else f"tl.{function}imum({name}, {value}{nan})"
        )
        self.lines.append(f"{name} = tl.full({self.shape}, {neutral}, {element_type(total)})")
        n_unrolled = _unrolled(n_steps)
        body = [*inside.lines, f"{name} = {step}"]
        if n_unrolled == n_steps:
            self.lines += [f"for t in tl.static_range({n_steps}):", *_indented(body)]
        else:
            # The loads of a turn are in flight together.
            turn = [f"t = turn * {n_unrolled} + part", *body]
            inner = [f"for part in tl.static_range({n_unrolled}):", *_indented(turn)]
            self.lines += [f"for turn in range({n_steps // n_unrolled}):", *_indented(inner)]
        return Text(name, total, frozenset(key(tile.variable) for tile in self.tiles))


def _unrolled(n_steps: int) -> int:
    """Return the numbers of a window that a turn of the loop reads: a divisor of all."""
    return max(n for n in range(1, _MAX_UNROLLED + 1) if n_steps % n == 0)


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def ranked(windows: Windows, architecture: int, cache_bytes: int = 0) -> list[Configuration]:
    """Return the configurations of windows, the fastest by estimate first."""
    sizes = ((1, 2, 4, 8, 16, 32, 64), (16, 32, 64, 128, 256), (1, 2, 4, 8))
    decisions = np.array(list(itertools.product(*sizes)))
    n_rows, n_columns, n_warps = decisions.T
    kept = n_rows * n_columns / (gpus.WARP * n_warps)
    is_padded = (n_columns >= 2 * max(windows.n_columns, 16)) | (n_rows >= 2 * windows.n_rows)
    decisions = decisions[(kept >= _MIN_KEPT) & (kept <= _MAX_KEPT) & ~is_padded]
    secs = estimate_secs(windows, decisions, gpus.gpu_of(architecture, cache_bytes))
    order = np.argsort(secs, kind="stable")
    return [Configuration(*each) for each in decisions[order].tolist()]


def estimate_secs(windows: Windows, decisions: np.ndarray, gpu: gpus.Gpu) -> np.ndarray:
    """Estimate the times of configurations, in seconds; see :class:`Template`."""
    n_rows, n_columns, n_warps = decisions.T.astype(float)
    kept = n_rows * n_columns / (gpus.WARP * n_warps)
    n_turns = windows.n_steps // _unrolled(windows.n_steps)
    n_blocks = np.ceil(windows.n_rows / n_rows) * np.ceil(windows.n_columns / n_columns)
    n_blocks = np.ceil(n_blocks / gpu.n_multiprocessors)  # of a multiprocessor
    secs: np.ndarray = _TURN_SECS * n_turns * np.maximum(n_blocks * n_warps / _BUSY_WARPS, 1.0)
    secs += _STEP_SECS * kept * windows.n_steps
    secs += n_blocks * n_columns * windows.n_steps * (n_rows * _LOAD_SECS + _WEIGHT_SECS)
    return gpus.LAUNCH_SECS + secs
