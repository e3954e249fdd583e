"""Source of the loop over the steps of a product, for a tile of its sums."""

from collections.abc import Sequence
from dataclasses import dataclass

from tvm.tirx import Var

from tuner.engines.relax.triton.expressions.kernel_blocks import key
from tuner.engines.relax.triton.expressions.printer import (
    Arguments,
    Printer,
    PrintError,
    Tile,
    element_type,
)
from tuner.engines.relax.triton.templates.configurations import Configuration
from tuner.engines.relax.triton.templates.contractions import Contraction, extent_of, split

_INDEX = "int64"
# Difference of unsigned bytes and the signed ones that they are multiplied as.
_HALF_BYTE = 128


@dataclass
class Loop:
    """The loop of a product; what precedes the product is computed as operands are loaded.

    Attributes:
        of: Product.
        by: Decisions.
        place: Variables of batch, row and column.
        tiles: Their tiles.
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
