"""Source of the kernels of a contraction: a loop of products of tiles, and what follows it.

What precedes the products is computed as operands are loaded, what follows them before the sums
are stored. Sums that several blocks share go through a workspace; a second kernel adds them in a
fixed order and computes what follows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx
from tvm.tirx import IndexMap, Var

from tuner.engines.relax.triton.configurations import Configuration
from tuner.engines.relax.triton.contractions import Contraction, extent_of, split
from tuner.engines.relax.triton.kernel_blocks import Block, children, key, substitute
from tuner.engines.relax.triton.printer import (
    HELPERS,
    Arguments,
    Printer,
    PrintError,
    Text,
    Tile,
    element_type,
)
from tuner.engines.relax.triton.programs import (
    WORKSPACE,
    Kernel,
    Program,
    named_by_content,
)

_INDEX = "int64"
# Elements of the output that a block of the second kernel adds up, and its warps.
_ADDED, _ADDING_WARPS = 512, 4


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
        self._batch, self._row, self._column, self._step, self._tap, self._flat = (
            Var(name, _INDEX) for name in ("b", "m", "n", "k", "t", "i")
        )
        # Taps of a window are numbers if the channels of a tap fill whole turns of the loop.
        self._inner = max(reversed(self.of.steps), key=lambda axis: axis.extent)
        self._outer = tuple(axis for axis in self.of.steps if axis is not self._inner)
        self._has_taps = bool(self._outer) and self._inner.extent % self.by.steps == 0
        self._n_inner = self._inner.extent if self._has_taps else self.of.n_steps
        self._turns_of_tap = -(-self._n_inner // self.by.steps)
        self._n_turns = self._turns_of_tap * (extent_of(self._outer) if self._has_taps else 1)
        self._turns_of_part = -(-self._n_turns // self.by.n_splits)
        self._row_tiles = -(-self.of.n_rows // self.by.rows)
        self._column_tiles = -(-self.of.n_columns // self.by.columns)

    def program(self) -> Program:
        """Return the kernels."""
        if self._has_taps and self._n_turns % self.by.n_splits:
            raise PrintError("the parts of the sums differ in size")
        grid = self._row_tiles * self._column_tiles * self.by.n_splits * self.of.n_batches
        arguments = Arguments(self.of.blocks.function)
        lines = [*self._positions(), *self._loop(arguments)]
        n_sums = self.of.n_batches * self.of.n_rows * self.of.n_columns
        if self.by.n_splits == 1:
            lines += self._finish(arguments, self._tiles(), self._coordinates(), "y")
            return Program((self._kernel("gemm", lines, arguments, grid),))
        lines.append(self._partial(n_sums))
        first = self._kernel("gemm", lines, arguments, grid, workspace=True)
        arguments = Arguments(self.of.blocks.function)
        second = self._adding(arguments, n_sums)
        workspace = (self.by.n_splits, n_sums)
        return Program((first, second), workspace, self.of.total)

    def _kernel(
        self,
        kind: str,
        lines: Sequence[str],
        arguments: Arguments,
        grid: int,
        *,
        workspace: bool = False,
    ) -> Kernel:
        names = sorted(arguments.names.values(), key=lambda name: int(name[1:]))
        helpers = "".join(
            f"\n\n@triton.jit\ndef {name}(x):{HELPERS[name].rstrip()}\n"
            for name in sorted(self.helpers)
        )
        pointers = [*names, WORKSPACE] if workspace else names
        body = "\n".join(f"    {line}" for line in lines)
        text = f"{helpers}\n\n@triton.jit\ndef KERNEL({', '.join(pointers)}):\n{body}\n"
        parameters = self.of.blocks.function.params
        dtypes = [str(parameters[int(name[1:])].dtype) for name in names]
        if workspace:
            dtypes.append(self.of.total)
        is_adding = kind != "gemm"
        return named_by_content(
            f"triton_{kind}",
            text.lstrip("\n"),
            tuple(zip(pointers, dtypes, strict=True)),
            grid,
            (_ADDING_WARPS, 1) if is_adding else (self.by.n_warps, self.by.n_stages),
        )

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

    @property
    def _is_masked(self) -> bool:
        """True if turns of the loop lie beyond the last step."""
        n_turns = self._turns_of_part * self.by.n_splits
        return not self._has_taps and n_turns * self.by.steps > self._n_inner

    @property
    def _is_sum(self) -> bool:
        return self.by.rows == 1

    def _loop(self, arguments: Arguments) -> list[str]:
        """Return the lines that compute the sums of a tile as ``acc``."""
        by, total = self.by, element_type(self.of.total)
        shape = (by.steps, by.columns) if self._is_sum else (by.rows, by.columns)
        lines = [
            f"acc = tl.zeros({shape}, {total})",
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
            inside.append(f"acc += left.to({total}) * right.to({total})")
        else:
            # Three products of 19 bits keep the digits of float32.
            precision = ', input_precision="tf32x3"' if self.of.dtype == "float32" else ""
            inside.append(f"acc = tl.dot(left, right, acc, out_dtype={total}{precision})")
        lines += [f"    {line}" for line in inside]
        return [*lines, "acc = tl.sum(acc, 0)[None, :]"] if self._is_sum else lines

    def _operand(self, number: int, arguments: Arguments) -> list[str]:
        """Return the lines that load a tile of an operand as ``left`` or ``right``."""
        is_column_of_steps = bool(number) or self._is_sum
        name = ("left", "right")[number]
        code = "k[:, None]" if is_column_of_steps else "k[None, :]"
        mask = f"({code} < {self._n_inner})" if self._is_masked else ""
        step = Tile(self._step, self._n_inner, code, mask)
        tiles = [*self._tiles(), Tile(self._tap, extent_of(self._outer), "t"), step]
        printer = self._printer(arguments, tiles, name[0])
        values = self.of.elements(self._batch, self._row, self._column)
        if self._has_taps:
            values |= split(self._outer, self._tap)
            values[key(self._inner.variable)] = self._step
        else:
            values |= split(self.of.steps, self._step)
        resolved = self.of.resolved(values)
        text = printer.value(self.of.operands[number], resolved, self.of.variables, ())
        result = text.code
        if text.dtype != self.of.dtype:
            result = f"({result}).to({element_type(self.of.dtype)})"
        # The value beyond the last step need not be zero where that of a load is.
        if mask and text.code not in printer.loads:
            result = f"tl.where({mask}, {result}, 0)"
        needed = {key(self._step)} | ({key((self._row, self._column)[number])})
        if not self._is_sum and not needed <= text.tiles:
            shape = (self.by.steps, self.by.columns) if number else (self.by.rows, self.by.steps)
            result = f"tl.broadcast_to({result}, {shape})"
        return [*printer.lines, f"{name} = {result}"]

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

    def _coordinates(self) -> tuple[Any, Any, Any]:
        return self._batch, self._row, self._column

    def _partial(self, n_sums: int) -> str:
        """Return the line that stores the sums of a part."""
        masks = " & ".join(tile.mask for tile in self._tiles() if tile.mask)
        guard = f", mask={masks}" if masks else ""
        offset = f"part * {n_sums} + (b * {self.of.n_rows} + m) * {self.of.n_columns} + n"
        return f"tl.store({WORKSPACE} + {offset}, acc{guard})"

    def _adding(self, arguments: Arguments, n_sums: int) -> Kernel:
        """Return the kernel that adds the parts."""
        mask = f"(i < {n_sums})" if n_sums % _ADDED else ""
        guard = f", mask={mask}, other=0" if mask else ""
        lines = [
            f"i = tl.program_id(0) * {_ADDED} + tl.arange(0, {_ADDED})",
            f"acc = tl.load({WORKSPACE} + i{guard})",
            f"for part in tl.static_range(1, {self.by.n_splits}):",
            f"    acc += tl.load({WORKSPACE} + part * {n_sums} + i{guard})",
        ]
        n_rows, n_columns = (tirx.const(n, _INDEX) for n in (self.of.n_rows, self.of.n_columns))
        row = self._flat // n_columns
        coordinates = (row // n_rows, row % n_rows, self._flat % n_columns)
        tiles = [Tile(self._flat, n_sums, "i", mask)]
        lines += self._finish(arguments, tiles, coordinates, "y")
        grid = -(-n_sums // _ADDED)
        return self._kernel("add", lines, arguments, grid, workspace=True)

    def _finish(
        self,
        arguments: Arguments,
        tiles: Sequence[Tile],
        coordinates: tuple[Any, Any, Any],
        prefix: str,
    ) -> list[str]:
        """Return the lines that compute the outputs of the workload from ``acc``."""
        block = self.of.block
        resolved = self.of.resolved(self.of.elements(*coordinates))
        at = [substitute(each, resolved, self.of.variables) for each in block.indices]
        printer = self._printer(arguments, tiles, prefix)
        everywhere = frozenset(key(tile.variable) for tile in tiles)
        sums = Text("acc", self.of.total, everywhere)
        printer.known = {key(block.buffer): (sums, at)}
        lines = []
        for output in self.of.blocks.outputs:
            values = self._origin(output, at)
            variables = [axis.variable for axis in output.axes]
            if output is block:
                text = sums
                written: Sequence[Any] = at
            else:
                text = printer.value(output.value, values, variables, ())
                written = [substitute(each, values, variables) for each in output.indices]
            offset: Any = tirx.const(0, _INDEX)
            for index, size in zip(written, output.buffer.shape, strict=True):
                offset = offset * size + index
            where = printer.index(offset)
            mask = printer.mask_of(everywhere)
            guard = f", mask={mask}" if mask else ""
            dtype = element_type(str(output.buffer.dtype))
            pointer = arguments.name(output.buffer)
            value = f"tl.full((), {text.code}, {dtype})" if not text.tiles else text.code
            lines += printer.lines
            printer.lines.clear()
            lines.append(f"tl.store({pointer} + {where.code}, ({value}).to({dtype}){guard})")
        return lines

    def _origin(self, output: Block, at: Sequence[Any]) -> dict[int, Any]:
        """Return the axes of an output where it reads some sums.

        Raises:
            PrintError: If sums and elements of the output do not belong to each other one by one.
        """
        if output is self.of.block:
            return {}
        read = self._reads(output.value, {}, [], output)
        variables = [axis.variable for axis in output.axes]
        if read is None or extent_of(output.axes) != _size(self.of.block.buffer):
            raise PrintError("outputs are not computed from the sums one by one")
        values = Block(None, tuple(read), None, output.axes).at(at)
        if values is not None:
            return values
        try:
            sizes = [int(axis.extent) for axis in output.axes]
            inverse = IndexMap(variables, list(read), None).inverse(sizes)
            origin = inverse.map_indices(list(at))
        except Exception as error:  # TVM's errors have no common class
            raise PrintError("outputs are not computed from the sums one by one") from error
        return {key(each): value for each, value in zip(variables, origin, strict=True)}

    def _reads(
        self, expr: Any, values: dict[int, Any], variables: Sequence[Any], block: Block
    ) -> list[Any] | None:
        """Return the indices at which an expression reads the sums; None if it does not."""
        if hasattr(expr, "source") and hasattr(expr, "indices"):
            at = [substitute(each, values, variables) for each in expr.indices]
            if expr.source.same_as(self.of.block.buffer):
                return at
            inner = self.of.blocks.blocks.get(key(expr.source))
            inner_values = inner.at(at) if inner is not None else None
            if inner is None or inner_values is None:
                return None
            return self._reads(
                inner.value, inner_values, [axis.variable for axis in inner.axes], inner
            )
        for child in children(expr):
            indices = self._reads(child, values, variables, block)
            if indices is not None:
                return indices
        return None

    def _printer(self, arguments: Arguments, tiles: Sequence[Tile], prefix: str) -> Printer:
        return Printer(self.of.blocks, tiles, arguments, helpers=self.helpers, prefix=prefix)


def _size(buffer: Any) -> int:
    size = 1
    for extent in buffer.shape:
        size *= int(extent)
    return size
