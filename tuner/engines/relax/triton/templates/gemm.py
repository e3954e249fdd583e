"""Source of the kernels of a contraction: a loop of products of tiles, and what follows it.

What precedes the products is computed as operands are loaded, what follows them before the sums
are stored. Sums that several blocks share go through a workspace; a second kernel, or the last of
the blocks, adds them in a fixed order and computes what follows. So do all sums whose rows are
reduced, as a norm does: who adds them holds whole rows.
"""

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx import Var

from tuner.engines.relax.triton.expressions.epilogues import print_outputs
from tuner.engines.relax.triton.expressions.kernel_blocks import key
from tuner.engines.relax.triton.expressions.printer import (
    Arguments,
    Printer,
    PrintError,
    Tile,
    element_type,
    print_kernel,
)
from tuner.engines.relax.triton.programs import WORKSPACE, Kernel, Program, last_arrival
from tuner.engines.relax.triton.ranking import copied_parts
from tuner.engines.relax.triton.templates.configurations import Configuration
from tuner.engines.relax.triton.templates.contractions import Contraction, extent_of, split
from tuner.engines.relax.triton.templates.rows import MAX_ROW, RowPrinter

_INDEX = "int64"
# Difference of unsigned bytes and the signed ones that they are multiplied as.
_HALF_BYTE = 128
# Elements of the output that a block of the second kernel adds up, and its warps.
_ADDED, _ADDING_WARPS = 512, 4
# Elements of whole rows that a warp of the second kernel holds, and the most warps of a block.
_OF_WARP, _MAX_ROW_WARPS = 256, 16
# Blocks, warps, stages, and counters if there are any.
Launch = tuple[int, ...]


@dataclass
class Loop:
    """The loop of a product; what precedes the product is computed as operands are loaded.

    Attributes:
        by: Decisions.
        place: Variables of batch, row and column.
        helpers: Names of the helpers that were called.
    """

    of: Contraction
    by: Configuration
    place: tuple[Var, Var, Var]
    tiles: Sequence[Tile]
    helpers: set[str]

    def __post_init__(self) -> None:
        self._step, self._tap = Var("k", _INDEX), Var("t", _INDEX)
        # Taps of a window are numbers if the channels of a tap fill whole turns of the loop.
        self._inner = max(reversed(self.of.steps), key=lambda axis: axis.extent)
        self._outer = tuple(axis for axis in self.of.steps if axis is not self._inner)
        self._has_taps = bool(self._outer) and self._inner.extent % self.by.steps == 0
        self._n_inner = self._inner.extent if self._has_taps else self.of.n_steps
        self._turns_of_tap = -(-self._n_inner // self.by.steps)
        n_turns = self._turns_of_tap * (extent_of(self._outer) if self._has_taps else 1)
        self._turns_of_part = -(-n_turns // self.by.n_splits)
        if self._has_taps and n_turns % self.by.n_splits:
            raise PrintError("the parts of the sums differ in size")

    @property
    def _is_masked(self) -> bool:
        """True if turns of the loop lie beyond the last step."""
        n_turns = self._turns_of_part * self.by.n_splits
        return not self._has_taps and n_turns * self.by.steps > self._n_inner

    @property
    def _is_sum(self) -> bool:
        return self.by.rows == 1

    @property
    def _rest(self) -> tuple[tuple[int, int], str]:
        """Shape and value of the sums of what unsigned bytes are multiplied with in a turn."""
        if self.of.unsigned:
            return (self.by.rows, 1), "tl.sum(left.to(tl.int32), 1)[:, None]"
        return (1, self.by.columns), "tl.sum(right.to(tl.int32), 0)[None, :]"

    def lines(self, arguments: Arguments, sums: str) -> list[str]:
        """Return the lines that compute the sums of a tile.

        Args:
            arguments: Arguments of the kernel.
            sums: Name of the sums.
        """
        by, total = self.by, element_type(self.of.total)
        shape = (by.steps, by.columns) if self._is_sum else (by.rows, by.columns)
        lines = [
            f"{sums} = tl.zeros({shape}, {total})",
            f"for turn in range({self._turns_of_part}):",
        ]
        inside = [f"turn += part * {self._turns_of_part}"] if by.n_splits > 1 else []
        at = "turn"
        if self._has_taps:
            inside.append(f"t = turn // {self._turns_of_tap}")
            at = f"turn % {self._turns_of_tap}"
        inside.append(f"k = {at} * {by.steps} + tl.arange(0, {by.steps})")
        inside += self._operand(0, arguments) + self._operand(1, arguments)
        if self._is_sum:
            inside.append(f"{sums} += left.to({total}) * right.to({total})")
        else:
            # Three products of 19 bits keep the digits of float32.
            precision = ', input_precision="tf32x3"' if self.of.dtype == "float32" else ""
            inside.append(f"{sums} = tl.dot(left, right, {sums}, out_dtype={total}{precision})")
            if self.of.unsigned is not None:
                lines.insert(0, f"bytes = tl.zeros({self._rest[0]}, {total})")
                inside.append(f"bytes += {self._rest[1]}")
        lines += [f"    {line}" for line in inside]
        if self.of.unsigned is not None and not self._is_sum:
            lines.append(f"{sums} += {_HALF_BYTE} * bytes")
        return [*lines, f"{sums} = tl.sum({sums}, 0)[None, :]"] if self._is_sum else lines

    def _operand(self, number: int, arguments: Arguments) -> list[str]:
        """Return the lines that load a tile of an operand as ``left`` or ``right``."""
        is_column_of_steps = bool(number) or self._is_sum
        name = ("left", "right")[number]
        code = "k[:, None]" if is_column_of_steps else "k[None, :]"
        mask = f"({code} < {self._n_inner})" if self._is_masked else ""
        step = Tile(self._step, self._n_inner, code, mask)
        tiles = [*self.tiles, Tile(self._tap, extent_of(self._outer), "t"), step]
        printer = Printer(self.of.blocks, tiles, arguments, helpers=self.helpers, prefix=name[0])
        values = self.of.elements(*self.place)
        if self._has_taps:
            values |= split(self._outer, self._tap)
            values[key(self._inner.variable)] = self._step
        else:
            values |= split(self.of.steps, self._step)
        resolved = self.of.resolved(values)
        text = printer.value(self.of.operands[number], resolved, self.of.variables, ())
        result = text.code
        if number == self.of.unsigned and not self._is_sum:
            result = f"({result} ^ {_HALF_BYTE}).to(tl.int8)"
        elif number != self.of.unsigned and text.dtype != self.of.dtype:
            result = f"({result}).to({element_type(self.of.dtype)})"
        # The value beyond the last step need not be zero where that of a load is.
        if mask and text.code not in printer.loads:
            result = f"tl.where({mask}, {result}, 0)"
        needed = {key(self._step)} | ({key(self.place[1 + number])})
        if not self._is_sum and not needed <= text.tiles:
            shape = (self.by.steps, self.by.columns) if number else (self.by.rows, self.by.steps)
            result = f"tl.broadcast_to({result}, {shape})"
        return [*printer.lines, f"{name} = {result}"]


def print_program(contraction: Contraction, configuration: Configuration) -> Program:
    """Print the kernels of a contraction.

    Raises:
        PrintError: If a part of the workload has no form in Triton.
    """
    return _Source(contraction, configuration).program()


@dataclass
class _Source:
    of: Contraction
    by: Configuration
    helpers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._batch, self._row, self._column, self._flat = (
            Var(name, _INDEX) for name in ("b", "m", "n", "i")
        )
        self._row_tiles = -(-self.of.n_rows // self.by.rows)
        self._column_tiles = -(-self.of.n_columns // self.by.columns)

    def program(self) -> Program:
        """Return the kernels."""
        if self.of.beside is not None and self.by.n_splits > 1:
            raise PrintError("the sums of two products have no parts")
        grid = self._row_tiles * self._column_tiles * self.by.n_splits * self.of.n_batches
        arguments = Arguments(self.of.blocks.function)
        positions, place = self._positions(), (self._batch, self._row, self._column)
        loops = []
        for product, sums in self.of.products:
            loop = Loop(product, self.by, place, self._tiles(), self.helpers)
            loops += loop.lines(arguments, sums)
        lines = [*positions, *loops]
        n_sums = self.of.n_batches * self.of.n_rows * self.of.n_columns
        if self.by.n_splits == 1 and not self.of.has_norm:
            printer = self._printer(arguments, self._tiles(), "y")
            lines += print_outputs(self.of, printer, (self._batch, self._row, self._column))
            launch = (grid, self.by.n_warps, self.by.n_stages)
            return Program((self._printed("gemm", lines, arguments, launch),))
        launch = (grid, self.by.n_warps, self.by.n_stages)
        if self.by.is_one_kernel and not self.of.has_norm:
            return self._of_tiles(arguments, positions, loops, launch)
        masks = " & ".join(tile.mask for tile in self._tiles() if tile.mask)
        guard = f", mask={masks}" if masks else ""
        offset = f"part * {n_sums} + (b * {self.of.n_rows} + m) * {self.of.n_columns} + n"
        lines.append(f"tl.store({WORKSPACE} + {offset}, acc{guard})")
        workspace = (self.by.n_splits, n_sums)
        if self.by.is_one_kernel:
            last = self._last_of_rows(arguments, n_sums)
            counted = (*launch, self._row_tiles * self.of.n_batches)
            kernels = [self._printed("gemm", [*lines, *last], arguments, counted)]
        else:
            second = self._of_rows(n_sums) if self.of.has_norm else self._adding(n_sums)
            kernels = [self._printed("gemm", lines, arguments, launch), second]
        return Program((*kernels,), workspace, self.of.total)

    def _printed(
        self,
        kind: str,
        lines: Sequence[str],
        arguments: Arguments,
        launch: Launch,
    ) -> Kernel:
        shares = self.by.n_splits > 1 or self.of.has_norm
        workspace = self.of.total if shares else ""
        return print_kernel(f"triton_{kind}", lines, arguments, self.helpers, launch, workspace)

    def _positions(self) -> list[str]:
        """Return the lines that compute the tile of a block."""
        by, n_rows, n_columns = self.by, self._row_tiles, self._column_tiles
        fast, slow = ("m", "n") if by.order == "rows" else ("n", "m")
        n_fast, n_slow = (n_rows, n_columns) if by.order == "rows" else (n_columns, n_rows)
        lines = [
            "pid = tl.program_id(0)",
            f"tile_{fast} = pid % {n_fast}",
            f"tile_{slow} = pid // {n_fast} % {n_slow}",
            f"part = pid // {n_fast * n_slow} % {by.n_splits}",
            f"b = pid // {n_fast * n_slow * by.n_splits}",
            f"n = (tile_n * {by.columns} + tl.arange(0, {by.columns}))[None, :]",
        ]
        rows = f"m = (tile_m * {by.rows} + tl.arange(0, {by.rows}))[:, None]"
        return [*lines, rows]

    def _tiles(self) -> list[Tile]:
        """Return the variables of batches, rows and columns."""
        of, by = self.of, self.by
        row_mask = f"(m < {of.n_rows})" if of.n_rows % by.rows else ""
        column_mask = f"(n < {of.n_columns})" if of.n_columns % by.columns else ""
        return [
            Tile(self._batch, of.n_batches, "b"),
            Tile(self._row, of.n_rows, "m", row_mask),
            Tile(self._column, of.n_columns, "n", column_mask),
        ]

    def _of_tiles(
        self, arguments: Arguments, positions: Sequence[str], loops: Sequence[str], launch: Launch
    ) -> Program:
        """Return the kernel whose last block of a tile adds its parts.

        That block waits for one trip to the cache: registers would hold few parts, so that they
        are copied to shared memory, where the operands were, and what follows reads of a row or
        column alone, such as a bias in memory, is loaded before the loop. The elements of a tile
        follow each other in the workspace, so that threads load 16 bytes beside each other.

        Args:
            positions: Lines that compute the tile of a block.
            loops: Lines that compute its sums.
            launch: Blocks, warps and stages.
        """
        of, by, n_elements = self.of, self.by, self.by.rows * self.by.columns
        n_tiles = self._row_tiles * self._column_tiles
        n_stored = n_tiles * of.n_batches * n_elements
        printer = self._printer(arguments, self._tiles(), "y")
        following = print_outputs(of, printer, (self._batch, self._row, self._column))
        ahead = self._ahead(printer)
        mask = f"e < ({of.n_rows} - tile_m * {by.rows}) * {by.columns}"
        has_edge = of.n_rows % by.rows > 0
        guard = f", mask={mask}" if has_edge else ""
        others = f"(number != part) & ({mask})" if has_edge else "number != part"
        (n_copied,) = copied_parts(of, np.array([astuple(by)[:-1]], dtype=int))
        lines = [
            *positions,
            *ahead,
            *loops,
            f"e = tl.arange(0, {n_elements})",
            f"parts = {WORKSPACE} + (b * {n_tiles} + pid % {n_tiles}) * {n_elements} + e",
            f"own = tl.reshape(acc, ({n_elements},))",
            f"tl.store(parts + part * {n_stored}, own{guard})",
            *last_arrival(f"b * {n_tiles} + pid % {n_tiles}", by.n_splits),
            f"total = tl.zeros(({n_elements},), {element_type(of.total)})",
            f"for number in tl.range({by.n_splits}, num_stages={1 + int(n_copied)}):",
            f"    other = tl.load(parts + number * {n_stored}, mask={others}, other=0)",
            "    total += tl.where(number == part, own, other)",
            f"acc = tl.reshape(total, ({by.rows}, {by.columns}))",
            *(line for line in following if line not in ahead),
        ]
        kernel = self._printed("gemm", lines, arguments, (*launch, n_tiles * of.n_batches))
        return Program((kernel,), (by.n_splits, n_stored), of.total)

    def _ahead(self, printer: Printer) -> list[str]:
        """Return the loads of a row or column alone that need nothing computed before them."""
        place = {key(self._row), key(self._column)}
        ahead = []
        for line in printer.lines:
            name, _, code = line.partition(" = ")
            is_narrow = len(printer.loads.get(name, place) & place) <= 1
            if is_narrow and not re.search(r"\b(y\d+|acc)\b", code):
                ahead.append(line)
        return ahead

    def _last_of_rows(self, arguments: Arguments, n_sums: int) -> list[str]:
        """Return the lines of the last block of some whole rows."""
        return [
            *last_arrival(f"b * {self._row_tiles} + tile_m", self._column_tiles * self.by.n_splits),
            f"n = tl.arange(0, {self._row_size})[None, :]",
            *self._whole_rows(
                arguments,
                self._tiles()[:2],
                (self._batch, self._row, self._column),
                f"((b * {self.of.n_rows} + m) * {self.of.n_columns} + n)",
                n_sums,
            ),
        ]

    @property
    def _row_size(self) -> int:
        """Elements of a tile that holds a whole row."""
        if self.of.n_columns > MAX_ROW:
            raise PrintError("a row of the sums is longer than a block can hold")
        return int(1 << (self.of.n_columns - 1).bit_length())

    def _adding(self, n_sums: int) -> Kernel:
        """Return the kernel that adds the parts, and computes what follows element by element."""
        mask = f"(i < {n_sums})" if n_sums % _ADDED else ""
        lines = [f"i = tl.program_id(0) * {_ADDED} + tl.arange(0, {_ADDED})"]
        lines += self._added("i", mask, n_sums)
        n_rows, n_columns = (tirx.const(n, _INDEX) for n in (self.of.n_rows, self.of.n_columns))
        row = self._flat // n_columns
        coordinates = (row // n_rows, row % n_rows, self._flat % n_columns)
        arguments = Arguments(self.of.blocks.function)
        printer = self._printer(arguments, [Tile(self._flat, n_sums, "i", mask)], "y")
        lines += print_outputs(self.of, printer, coordinates)
        launch = (-(-n_sums // _ADDED), _ADDING_WARPS, 1)
        return self._printed("add", lines, arguments, launch)

    def _of_rows(self, n_sums: int) -> Kernel:
        """Return the kernel that adds the parts of whole rows, and computes what follows."""
        n_columns, size = self.of.n_columns, self._row_size
        n_held, n_rows = max(_OF_WARP // size, 1), n_sums // n_columns
        mask = f"(i < {n_rows})" if n_rows % n_held else ""
        rows = tirx.const(self.of.n_rows, _INDEX)
        arguments = Arguments(self.of.blocks.function)
        tiles = [Tile(self._flat, n_rows, "i", mask)]
        coordinates = (self._flat // rows, self._flat % rows, self._column)
        lines = [
            f"i = (tl.program_id(0) * {n_held} + tl.arange(0, {n_held}))[:, None]",
            f"n = tl.arange(0, {size})[None, :]",
            *self._whole_rows(arguments, tiles, coordinates, f"(i * {n_columns} + n)", n_sums),
        ]
        n_warps = min(max(n_held * size // _OF_WARP, 1), _MAX_ROW_WARPS)
        launch = (-(-n_rows // n_held), n_warps, 1)
        return self._printed("norm", lines, arguments, launch)

    def _whole_rows(
        self,
        arguments: Arguments,
        tiles: Sequence[Tile],
        coordinates: tuple[Any, Any, Any],
        offset: str,
        n_sums: int,
    ) -> list[str]:
        """Return the lines that add the parts of whole rows, and compute what follows.

        Args:
            arguments: Arguments of the kernel.
            tiles: Variables of the rows.
            coordinates: Batch, row and column of a sum.
            offset: Offset of a sum in a part.
        """
        n_columns = self.of.n_columns
        mask = f"(n < {n_columns})" if self._row_size > n_columns else ""
        tiles = [*tiles, Tile(self._column, n_columns, "n", mask)]
        masks = " & ".join(tile.mask for tile in tiles if tile.mask)
        printer = RowPrinter(self.of.blocks, tiles, arguments, helpers=self.helpers, prefix="y")
        outputs = print_outputs(self.of, printer, coordinates)
        return [*self._added(offset, masks, n_sums), *outputs]

    def _added(self, at: str, mask: str, n_sums: int) -> list[str]:
        """Return the lines that add the parts at an offset as ``acc``."""
        guard = f", mask={mask}, other=0" if mask else ""
        return [
            f"acc = tl.load({WORKSPACE} + {at}{guard})",
            f"for other in tl.static_range(1, {self.by.n_splits}):",
            f"    acc += tl.load({WORKSPACE} + other * {n_sums} + {at}{guard})",
        ]

    def _printer(self, arguments: Arguments, tiles: Sequence[Tile], prefix: str) -> Printer:
        return Printer(self.of.blocks, tiles, arguments, helpers=self.helpers, prefix=prefix)
