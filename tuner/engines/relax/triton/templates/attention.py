"""Attention as one kernel: scores, their softmax and the product with the values.

A block computes some rows of one head. It goes through the keys once: the largest score and the
sum of the exponentials of each row are those of the keys so far, and what was added before is
scaled when the largest score changes (Milakov and Gimelshein, "Online normalizer calculation for
softmax", 2018). Where there are fewer blocks than multiprocessors, as for the one row of a step of
a decoder, several blocks share the keys of a row, and a second kernel, or the last of the blocks,
combines their parts.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from tvm import tirx
from tvm.tirx import PrimFunc, Var

from tuner.engines.relax.triton import gpus
from tuner.engines.relax.triton.expressions.epilogues import print_copy, print_outputs
from tuner.engines.relax.triton.expressions.kernel_blocks import (
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
from tuner.engines.relax.triton.programs import WORKSPACE, Kernel, Program, last_arrival
from tuner.engines.relax.triton.templates.configurations import Decisions
from tuner.engines.relax.triton.templates.contractions import Contraction, extent_of

_INDEX = "int64"
# Numbers of a query or a value that a block keeps.
_MAX_WIDTH = 256
# Sums, scores and operands of a thread.
_MAX_KEPT = 160
# Constants of times, see gpus: a kernel, four warps of a multiprocessor, a turn, a weight of a
# thread, and rows that warps share.
_START_SECS, _GROUP_SECS = 0.1e-6, 0.64e-6
_TURN_SECS, _WEIGHT_SECS, _SHARED_ROW_SECS = 27e-9, 14.2e-9, 0.1e-6
# A second kernel that combines parts, beyond one that adds those of products.
_COMBINE_SECS = 0.4e-6
# Reductions of an attention: scores, their maxima and sums, and the product with the values.
_N_REDUCTIONS = 4
# Elements of a copy that a block stores at least.
_MIN_SHARE = 128
# Parts of the keys, numbers that a block of the second kernel combines, and its warps.
_MAX_SPLITS, _COMBINED, _COMBINING_WARPS = 64, 64, 2
# Blocks of a multiprocessor that the parts of the keys may make.
_BLOCKS_OF_SPLITS = 4


@dataclass(frozen=True)
class Configuration(Decisions):
    """Decisions of an attention.

    Attributes:
        rows: Rows of a block, a power of two; one row is not worth tensor cores.
        keys: Keys of one turn of the loop, a power of two.
        n_stages: Turns whose keys and values are loaded ahead.
        n_warps: Warps of a block.
        n_splits: Parts of the keys that blocks of their own go through.
        is_one_kernel: True if the last block of some rows combines the parts, False for a second
            kernel.
    """

    family = "triton-attention"
    pattern = (
        r"(?P<rows>\d{1,3})-(?P<keys>\d{1,3})-(?P<n_stages>\d)-(?P<n_warps>\d\d?)"
        r"(?:-s(?P<is_one_kernel>[kl])(?P<n_splits>\d\d?))?"
    )
    rows: int
    keys: int
    n_stages: int
    n_warps: int
    n_splits: int = 1
    is_one_kernel: bool = False

    @property
    def name(self) -> str:
        """Name with every decision."""
        kind = "l" if self.is_one_kernel else "k"
        splits = f"-s{kind}{self.n_splits}" if self.n_splits > 1 else ""
        return f"{self.family}-{self.rows}-{self.keys}-{self.n_stages}-{self.n_warps}{splits}"


@dataclass(frozen=True)
class Attention:
    """The products and the softmax of a workload.

    Attributes:
        scores: Product of queries and keys.
        context: Product of the weights and the values.
        logits: Block of the exponentials' operand before their maximum is subtracted.
        weights: Indices at which the second product reads the weights.
        kept: Condition of the sum of a row under which it is not zero; empty if no row is masked.
        copies: Outputs that follow from arguments alone, as new keys that are parts of a tensor.
    """

    scores: Contraction
    context: Contraction
    logits: Any
    weights: tuple[Any, ...]
    kept: str
    copies: tuple[Block, ...]

    @classmethod
    def find(cls, function: PrimFunc) -> Self | None:
        """Return the attention of a workload; None if it is something else."""
        blocks = KernelBlocks.of(function)
        if blocks is None or len(blocks.reductions) != _N_REDUCTIONS:
            return None
        products = [Contraction.of(blocks, block) for block in blocks.reductions]
        contractions = [each for each in products if each is not None]
        if len(contractions) != 2:
            return None
        for scores, context in (contractions, contractions[::-1]):
            softmax = _Softmax.find(blocks, context.operands[0])
            is_whole = len(context.steps) == len(scores.steps) == 1
            if softmax is not None and is_whole and context.dtype == scores.dtype:
                copies = [
                    each
                    for each in blocks.outputs
                    if each is not context.block
                    and blocks.reads(context.block.buffer, each.value, {}, []) is None
                ]
                return cls(
                    scores, context, softmax.logits, softmax.indices, softmax.kept, (*copies,)
                )
        return None

    @property
    def flop(self) -> float:
        """Floating-point operations of the products."""
        return self.scores.flop + self.context.flop

    @property
    def n_terms(self) -> int:
        """Numbers of a query."""
        return self.scores.n_steps

    @property
    def n_values(self) -> int:
        """Numbers of a value."""
        return self.context.n_columns


@dataclass(frozen=True)
class _Softmax:
    """A softmax along the last axis, and the indices at which an expression reads it."""

    logits: Any
    indices: tuple[Any, ...]
    kept: str

    @classmethod
    def find(cls, blocks: KernelBlocks, weights: Any) -> Self | None:
        """Return the softmax that an expression is an element of; None for another expression."""
        indices = tuple(getattr(weights, "indices", ()))
        block = _block_of(blocks, weights)
        # Conversions between floats are blocks of their own.
        while block is not None and _is_copy(block):
            weights = without_conversions(block.value)
            block = _block_of(blocks, weights)
        if block is None or block.reduced:
            return None
        value = block.value
        parts = _ratio(blocks, block, getattr(value, "false_value", value))
        if parts is None:
            return None
        exponentials, sums = parts
        softmax = _logits_of(blocks, exponentials, sums)
        if softmax is None:
            return None
        logits, maxima = softmax
        kept = _kept(value, sums, maxima) if isinstance(value, tirx.Select) else ""
        return None if kept is None else cls(logits, indices, kept)


def _kept(value: Any, sums: Block, maxima: Block) -> str | None:
    """Return the condition of a sum under which a choice is not zero; None for other choices.

    It is zero where all scores are minus infinity; where the sum is not a number, it may be, too.
    """
    tests: list[Any] = [value.condition]
    names = set()
    while tests:
        test = tests.pop()
        if isinstance(test, tirx.Or):
            tests += [test.a, test.b]
        else:
            names.add(_test_of(test, sums, maxima))
    if float(getattr(value.true_value, "value", 1.0)) != 0.0:
        return None
    conditions = {frozenset({"zero", "isnan"}): "> 0.0", frozenset({"lowest"}): "!= 0.0"}
    return conditions.get(frozenset(names))


def _test_of(test: Any, sums: Block, maxima: Block) -> str:
    """Return the name of a test of a row; empty for another test."""
    if isinstance(test, tirx.EQ):
        number = float(getattr(test.b, "value", math.nan))
        is_zero = number == 0.0 and _is_of(test.a, sums.buffer)
        is_lowest = number == -math.inf and _is_of(test.a, maxima.buffer)
        return "zero" if is_zero else "lowest" if is_lowest else ""
    is_sum = _is_of((getattr(test, "args", None) or [test])[0], sums.buffer)
    name = str(getattr(getattr(test, "op", None), "name", "")).rpartition(".")[2]
    return name if is_sum else ""


def _ratio(blocks: KernelBlocks, block: Block, value: Any) -> tuple[Block, Block] | None:
    """Return the blocks of the exponentials and of their sums whose ratio a value is."""
    if isinstance(value, tirx.Div):
        top, bottom = value.a, value.b
    elif isinstance(value, tirx.Mul):
        factor = _block_of(blocks, value.b)
        ratio = None if factor is None else factor.value
        if not isinstance(ratio, tirx.Div) or float(getattr(ratio.a, "value", 0.0)) != 1.0:
            return None
        if factor is None or not _reads_own(factor, ratio.b):
            return None
        top, bottom = value.a, ratio.b
        if not _reads_row(block, value.b):
            return None
    else:
        return None
    exponentials, sums = _block_of(blocks, top), _block_of(blocks, bottom)
    if exponentials is None or sums is None or not _reads_own(block, top):
        return None
    is_row = isinstance(value, tirx.Mul) or _reads_row(block, bottom)
    return (exponentials, sums) if is_row else None


def _logits_of(blocks: KernelBlocks, exponentials: Block, sums: Block) -> tuple[Any, Block] | None:
    """Return the operand of a softmax and the block of its maxima; None for another function."""
    call = exponentials.value
    name = str(getattr(getattr(call, "op", None), "name", "")).rpartition(".")[2]
    if name != "exp" or not isinstance(call.args[0], tirx.Sub):
        return None
    logits, maximum = call.args[0].a, call.args[0].b
    maxima = _block_of(blocks, maximum)
    is_softmax = (
        maxima is not None
        and _reads_own(exponentials, logits)
        and _reads_row(exponentials, maximum)
        and isinstance(maxima.value, tirx.Max)
        and _is_of_rows(maxima, logits.source)
        and isinstance(sums.value, tirx.Add)
        and _is_of_rows(sums, exponentials.buffer)
        and float(getattr(sums.init, "value", 1.0)) == 0.0
    )
    return (logits.source, maxima) if maxima is not None and is_softmax else None


def _block_of(blocks: KernelBlocks, expr: Any) -> Block | None:
    """Return the block whose element an expression is."""
    expr = without_conversions(expr)
    return blocks.blocks.get(key(expr.source)) if hasattr(expr, "indices") else None


def without_conversions(expr: Any) -> Any:
    """Strip conversions between floats."""
    while isinstance(expr, tirx.Cast) and "float" in str(expr.value.ty.dtype):
        expr = expr.value
    return expr


def _is_copy(block: Block) -> bool:
    value = without_conversions(block.value)
    return hasattr(value, "indices") and not block.reduced and _reads_own(block, value)


def _reads_own(block: Block, expr: Any) -> bool:
    """Return whether an expression is the element of a buffer at the indices of a block."""
    expr = without_conversions(expr)
    return hasattr(expr, "indices") and _are_equal(expr.indices, block.indices)


def _reads_row(block: Block, expr: Any) -> bool:
    """Return whether an expression is the element of a buffer for the row of a block's element."""
    expr = without_conversions(expr)
    return hasattr(expr, "indices") and _are_equal(expr.indices, block.indices[:-1])


def _is_of_rows(block: Block, source: Any) -> bool:
    """Return whether a block reduces the rows of a buffer."""
    if len(block.reduced) != 1:
        return False
    others = [part for part in (block.value.a, block.value.b) if not _is_of(part, block.buffer)]
    if len(others) != 1:
        return False
    read = without_conversions(others[0])
    at = [*block.indices, block.reduced[0].variable]
    return _is_of(read, source) and _are_equal(read.indices, at)


def _is_of(expr: Any, buffer: Any) -> bool:
    expr = without_conversions(expr)
    return hasattr(expr, "indices") and bool(expr.source.same_as(buffer))


def _are_equal(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Return whether two elements have the same indices."""
    return len(first) == len(second) and all(
        a.same_as(b) or str(a) == str(b) for a, b in zip(first, second, strict=True)
    )


def print_program(attention: Attention, configuration: Configuration) -> Program:
    """Print the kernel of an attention, and one that combines parts of the keys if there are any.

    Raises:
        PrintError: If a part of the workload has no form in Triton.
    """
    return _Source(attention, configuration).program()


@dataclass
class _Source:
    of: Attention
    by: Configuration
    helpers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._batch, self._row, self._key, self._term, self._column = (
            Var(name, _INDEX) for name in ("b", "m", "n", "d", "c")
        )
        self._arguments = Arguments(self.of.context.blocks.function)
        context = self.of.context
        self._n_keys = context.n_steps
        self._row_tiles = -(-context.n_rows // self.by.rows)
        self._turns_of_part = -(-self._n_keys // (self.by.keys * self.by.n_splits))
        self._total = element_type(context.total)
        # Sums of a part, then the largest scores and the sums of the exponentials of its rows.
        self._n_outer = context.n_batches * context.n_rows
        self._n_sums = self._n_outer * context.n_columns
        self._terms, self._values = (_padded(n) for n in (self.of.n_terms, self.of.n_values))
        if max(self._terms, self._values) > _MAX_WIDTH:
            raise PrintError("a query or a value does not fit a block")
        # Elements of the weights, and the scores that they follow from.
        values = context.elements(self._batch, self._row, tirx.const(0, _INDEX))
        values[key(context.steps[0].variable)] = self._key
        resolved = context.resolved(values)
        self._weights = [substitute(i, resolved, context.variables) for i in self.of.weights]

    @property
    def _is_sum(self) -> bool:
        return self.by.rows == 1

    def program(self) -> Program:
        """Return the kernels."""
        by, total, n_blocks = self.by, self._total, self._row_tiles * self.by.n_splits
        options = (n_blocks * self.of.context.n_batches, by.n_warps, by.n_stages)
        # They arrive while the block computes.
        copied, copies = self._copies(options[0])
        lines = [
            "pid = tl.program_id(0)",
            *copied,
            f"b = pid // {n_blocks}",
            f"part = pid // {self._row_tiles} % {by.n_splits}",
            f"m = (pid % {self._row_tiles} * {by.rows} + tl.arange(0, {by.rows}))[:, None]",
            f"d = tl.arange(0, {self._terms})",
            f"c = tl.arange(0, {self._values})[None, :]",
            *self._operand(self.of.scores, 0, "queries"),
            f'top = tl.full(({by.rows},), float("-inf"), {total})',
            f"total = tl.zeros(({by.rows},), {total})",
            f"acc = tl.zeros(({by.keys if self._is_sum else by.rows}, {self._values}), {total})",
            f"for turn in range({self._turns_of_part}):",
            *(f"    {line}" for line in self._turn()),
        ]
        if self._is_sum:
            lines.append("acc = tl.sum(acc, 0)[None, :]")
        lines += copies
        if by.n_splits == 1:
            lines += [*self._ratio("[:, None]"), *self._outputs()]
            return Program((self._kernel("attention", lines, options),))
        lines += self._stored()
        workspace = (by.n_splits, self._n_sums + 2 * self._n_outer)
        if by.is_one_kernel:
            counter = f"pid % {self._row_tiles} + b * {self._row_tiles}"
            lines += [*last_arrival(counter, by.n_splits), *self._combined_tile()]
            n_counters = self._row_tiles * self.of.context.n_batches
            kernels = [self._kernel("attention", lines, (*options, n_counters))]
        else:
            first = self._kernel("attention", lines, options)
            self._arguments = Arguments(self.of.context.blocks.function)
            options = (-(-self._n_sums // _COMBINED), _COMBINING_WARPS, 1)
            kernels = [first, self._kernel("combine", self._combined_sums(), options)]
        return Program((*kernels,), workspace, self.of.context.total)

    def _kernel(self, kind: str, lines: Sequence[str], launch: tuple[int, ...]) -> Kernel:
        workspace = self.of.context.total if self.by.n_splits > 1 else ""
        return print_kernel(
            f"triton_{kind}", lines, self._arguments, self.helpers, launch, workspace
        )

    def _turn(self) -> list[str]:
        """Return the lines that add the keys of a turn."""
        dtype = element_type(self.of.context.dtype)
        precision = ', input_precision="tf32x3"' if self.of.context.dtype == "float32" else ""
        scores = f"tl.dot(queries, keys{precision})"
        values = self._operand(self.of.context, 1, "values")
        added = f"tl.dot(weights.to({dtype}), values, acc * scale[:, None]{precision})"
        if self._is_sum:
            scores = f"tl.sum(queries.to({self._total}) * keys.to({self._total}), 0)[None, :]"
            added = f"acc * scale[:, None] + tl.trans(weights) * values.to({self._total})"
        first = [f"turn += part * {self._turns_of_part}"] if self.by.n_splits > 1 else []
        return [
            *first,
            f"n = turn * {self.by.keys} + tl.arange(0, {self.by.keys})",
            *self._operand(self.of.scores, 1, "keys"),
            # Nothing else has the values loaded before they are needed.
            *(values if self._is_sum else ()),
            f"scores = {scores}",
            *self._logits(),
            "high = tl.maximum(top, tl.max(logits, 1))",
            # Rows of which nothing is left so far have no maximum.
            'base = tl.where(high == float("-inf"), 0.0, high)',
            "weights = tl.exp(logits - base[:, None])",
            "scale = tl.exp(top - base)",
            "total = total * scale + tl.sum(weights, 1)",
            *(() if self._is_sum else values),
            f"acc = {added}",
            "top = high",
        ]

    def _operand(self, of: Contraction, number: int, name: str) -> list[str]:
        """Return the lines that load the queries, the keys or the values."""
        if name == "queries":
            term = "d[:, None]" if self._is_sum else "d[None, :]"
            shape = (self._terms, 1) if self._is_sum else (self.by.rows, self._terms)
            needed = [self._row_tile(), self._term_tile(term)]
            others = [self._key_tile("n")]
        elif name == "keys":
            shape = (self._terms, self.by.keys)
            needed = [self._key_tile("n[None, :]"), self._term_tile("d[:, None]")]
            others = [self._row_tile()]
        else:
            shape = (self.by.keys, self._values)
            needed, others = [self._key_tile("n[:, None]"), self._column_tile()], []
        tiles = [self._batch_tile(), *needed, *others]
        printer = Printer(of.blocks, tiles, self._arguments, helpers=self.helpers, prefix=name[0])
        if of is self.of.context:
            values = of.elements(self._batch, tirx.const(0, _INDEX), self._column)
            values[key(of.steps[0].variable)] = self._key
            resolved = of.resolved(values)
        else:
            resolved = self._score_axes()
        text = printer.value(of.operands[number], resolved, of.variables, ())
        keys = {key(tile.variable) for tile in needed}
        if text.tiles & {key(tile.variable) for tile in others}:
            raise PrintError(f"{name} differ for each score")
        result = text.code
        if text.dtype != of.dtype:
            result = f"({result}).to({element_type(of.dtype)})"
        masks = printer.mask_of(keys)
        if masks and text.code not in printer.loads:
            result = f"tl.where({masks}, {result}, 0)"
        if not keys <= text.tiles:
            result = f"tl.broadcast_to({result}, {shape})"
        return [*printer.lines, f"{name} = {result}"]

    def _score_axes(self) -> dict[int, Any]:
        """Return the axes of the first product for an element of the weights."""
        scores = self.of.scores
        at = self._scores_at()
        values = scores.block.at(at)
        if values is None:
            raise PrintError("scores are not read one by one")
        for axis in scores.block.reduced:
            values[key(axis.variable)] = self._term if axis.extent > 1 else tirx.const(0, _INDEX)
        return values

    def _scores_at(self) -> list[Any]:
        """Return the indices of the score that an element of the weights follows from."""
        blocks, buffer = self.of.scores.blocks, self.of.scores.block.buffer
        if self.of.logits.same_as(buffer):
            return list(self._weights)
        block = blocks.blocks.get(key(self.of.logits))
        values = block.at(self._weights) if block is not None else None
        if block is not None and values is not None:
            variables = [axis.variable for axis in block.axes]
            at = blocks.reads(buffer, block.value, values, variables)
            if at is not None:
                return at
        raise PrintError("scores are not read one by one")

    def _logits(self) -> list[str]:
        """Return the lines that compute the operand of the softmax from the scores."""
        of = self.of.scores
        tiles = [self._batch_tile(), self._row_tile(), self._key_tile("n[None, :]")]
        everywhere = frozenset(key(tile.variable) for tile in tiles)
        known = {key(of.block.buffer): (Text("scores", of.total, everywhere), self._scores_at())}
        printer = Printer(of.blocks, tiles, self._arguments, known, self.helpers, prefix="x")
        text = printer.element(self.of.logits, self._weights)
        code = text.code if text.dtype == of.total else f"{text.code}.to(tl.float32)"
        mask = self._key_tile("n[None, :]").mask
        if mask:
            code = f'tl.where({mask}, {code}, float("-inf"))'
        return [*printer.lines, f"logits = {code}"]

    def _ratio(self, of_row: str) -> list[str]:
        """Return the lines that divide the sums of rows by the sums of their weights."""
        lines = [f"acc = acc / total{of_row}"]
        if self.of.kept:
            lines.append(f"acc = tl.where((total {self.of.kept}){of_row}, acc, 0.0)")
        return lines

    def _stored(self) -> list[str]:
        """Return the lines that store the sums of a part."""
        row, column = self._row_tile(), self._column_tile()
        masks = [each.mask for each in (row, column) if each.mask]
        guard = f", mask={' & '.join(masks)}" if masks else ""
        of_row = f", mask={row.mask}" if row.mask else ""
        context = self.of.context
        return [
            f"at = {WORKSPACE} + part * {self._n_sums + 2 * self._n_outer}",
            f"row = b * {context.n_rows} + m",
            f"tl.store(at + row * {context.n_columns} + c, acc{guard})",
            f"tl.store(at + {self._n_sums} + row, top[:, None]{of_row})",
            f"tl.store(at + {self._n_sums + self._n_outer} + row, total[:, None]{of_row})",
        ]

    def _combined_sums(self) -> list[str]:
        """Return the lines that combine some sums, and compute the outputs from them."""
        context = self.of.context
        mask = f"(i < {self._n_sums})" if self._n_sums % _COMBINED else ""
        lines = [
            f"i = tl.program_id(0) * {_COMBINED} + tl.arange(0, {_COMBINED})",
            *self._combined(f"i // {context.n_columns}", mask, "i", mask),
        ]
        flat = Var("i", _INDEX)
        n_rows, n_columns = (tirx.const(n, _INDEX) for n in (context.n_rows, context.n_columns))
        row = flat // n_columns
        coordinates = (row // n_rows, row % n_rows, flat % n_columns)
        return [*lines, *self._finished([Tile(flat, self._n_sums, "i", mask)], coordinates)]

    def _combined_tile(self) -> list[str]:
        """Return the lines that combine the rows of a block, and compute the outputs from them."""
        context, row = self.of.context, self._row_tile()
        mask = " & ".join(each for each in (row.mask, self._column_tile().mask) if each)
        number = f"(b * {context.n_rows} + m)"
        combined = self._combined(number, row.mask, f"{number} * {context.n_columns} + c", mask)
        return [*combined, *self._outputs()]

    def _combined(self, row: str, row_mask: str, at: str, mask: str) -> list[str]:
        """Return the lines that add the parts of sums as ``acc``.

        Args:
            row: Numbers of rows.
            row_mask: Condition under which a row exists; empty if all do.
            at: Offsets of the sums in a part.
            mask: Condition under which a sum exists; empty if all do.
        """
        stride = self._n_sums + 2 * self._n_outer
        of_row = f", mask={row_mask}, other=0" if row_mask else ""
        guard = f", mask={mask}, other=0" if mask else ""
        return [
            f"at = {WORKSPACE} + {at}",
            f"row = {WORKSPACE} + {self._n_sums} + {row}",
            f"high = tl.load(row{of_row})",
            f"for other in tl.static_range(1, {self.by.n_splits}):",
            f"    high = tl.maximum(high, tl.load(row + other * {stride}{of_row}))",
            'base = tl.where(high == float("-inf"), 0.0, high)',
            "scale = tl.exp(tl.load(row" + of_row + ") - base)",
            f"total = scale * tl.load(row + {self._n_outer}{of_row})",
            f"acc = scale * tl.load(at{guard})",
            f"for other in tl.static_range(1, {self.by.n_splits}):",
            f"    scale = tl.exp(tl.load(row + other * {stride}{of_row}) - base)",
            f"    total += scale * tl.load(row + other * {stride} + {self._n_outer}{of_row})",
            f"    acc += scale * tl.load(at + other * {stride}{guard})",
            *self._ratio(""),
        ]

    def _outputs(self) -> list[str]:
        tiles = [self._batch_tile(), self._row_tile(), self._column_tile()]
        return self._finished(tiles, (self._batch, self._row, self._column))

    def _finished(self, tiles: Sequence[Tile], coordinates: tuple[Any, Any, Any]) -> list[str]:
        """Return the lines that compute the outputs of the workload from ``acc``."""
        of = self.of.context
        printer = Printer(of.blocks, tiles, self._arguments, helpers=self.helpers, prefix="y")
        return print_outputs(of, printer, coordinates, self.of.copies)

    def _copies(self, n_blocks: int) -> tuple[list[str], list[str]]:
        """Return the loads and the stores of a block's share of the copies, as lines."""
        loads, stores = [], []
        for number, output in enumerate(self.of.copies):
            n_elements = extent_of(output.axes)
            share = max(_MIN_SHARE, 1 << (-(-n_elements // n_blocks) - 1).bit_length())
            code = f"copied{number}"
            mask = f"({code} < {n_elements})" if n_elements != share * n_blocks else ""
            tile = Tile(Var(code, _INDEX), n_elements, code, mask)
            printer = Printer(
                self.of.context.blocks,
                [tile],
                self._arguments,
                helpers=self.helpers,
                prefix=f"o{number}_",
            )
            lines, store = print_copy(output, printer, tile)
            loads += [f"{code} = pid * {share} + tl.arange(0, {share})", *lines]
            stores.append(store)
        return loads, stores

    def _batch_tile(self) -> Tile:
        return Tile(self._batch, self.of.context.n_batches, "b")

    def _row_tile(self) -> Tile:
        n_rows = self.of.context.n_rows
        return Tile(self._row, n_rows, "m", f"(m < {n_rows})" if n_rows % self.by.rows else "")

    def _key_tile(self, code: str) -> Tile:
        is_whole = self._n_keys == self._turns_of_part * self.by.n_splits * self.by.keys
        mask = "" if is_whole else f"({code} < {self._n_keys})"
        return Tile(self._key, self._n_keys, code, mask)

    def _term_tile(self, code: str) -> Tile:
        n_terms = self.of.n_terms
        return Tile(
            self._term, n_terms, code, f"({code} < {n_terms})" if n_terms != self._terms else ""
        )

    def _column_tile(self) -> Tile:
        n_values = self.of.n_values
        mask = f"(c < {n_values})" if n_values != self._values else ""
        return Tile(self._column, n_values, "c", mask)


def ranked(attention: Attention, architecture: int, cache_bytes: int = 0) -> list[Configuration]:
    """Return the configurations of an attention that a GPU can run, the fastest first."""
    gpu = gpus.gpu_of(architecture, cache_bytes)
    context, values = attention.context, _padded(attention.n_values)
    width = _padded(attention.n_terms) + values
    space = _configurations(context, gpu.n_multiprocessors)
    decisions = np.array([list(vars(each).values()) for each in space])
    rows, keys, stages, warps, splits, _ = decisions.T
    n_turns = -(-context.n_steps // (keys * splits))
    kept = np.where(rows == 1, keys * (values + 2 * width), rows * (values + keys))
    fits = (
        (_shared_bytes(attention, decisions) <= gpu.shared_bytes)
        & (kept <= _MAX_KEPT * gpus.WARP * warps)
        & (stages <= n_turns)
    )
    order = np.argsort(estimate_secs(attention, decisions[fits], gpu), kind="stable")
    return [Configuration(*each) for each in decisions[fits][order].tolist()]


def estimate_secs(attention: Attention, decisions: np.ndarray, gpu: gpus.Gpu) -> np.ndarray:
    """Estimate the times of configurations, in seconds; see :class:`Template`."""
    rows, keys, stages, warps, splits, is_one = decisions.T.astype(float)
    context, terms = attention.context, _padded(attention.n_terms)
    values, dtype = _padded(attention.n_values), attention.context.dtype
    threads, is_sum = gpus.WARP * warps, rows == 1
    n_blocks = context.n_batches * np.ceil(context.n_rows / rows) * splits
    kept = rows * (keys + values) / threads
    n_resident = gpu.n_resident(_shared_bytes(attention, decisions), kept, warps)
    product = gpu.product_secs(dtype, (rows, keys, terms), warps)
    product = product + gpu.product_secs(dtype, (rows, values, keys), warps)
    ahead = gpus.LATENCY_SECS / np.maximum(stages - 1, 1)
    # Extremes and sums of rows that several warps share go through shared memory.
    weights = _TURN_SECS + _WEIGHT_SECS * rows * keys / threads
    weights += _SHARED_ROW_SECS * (gpu.n_beside(rows, warps) > 1)
    secs = np.full(len(decisions), _START_SECS)
    for n_waves, n_beside in gpu.waves(n_blocks, n_resident):
        fill = gpu.fill_secs(n_beside * keys * (terms + values) * gpus.BYTES[dtype])
        waited = gpus.LATENCY_SECS + fill + n_beside * product
        overlapped = np.sqrt(ahead**2 + fill**2 + (n_beside * product) ** 2)
        turn = np.where(stages == 1, waited, overlapped)
        summed = gpus.sum_secs(keys * (terms + values) / threads, fill)
        turn = weights + np.where(is_sum, summed, turn)
        n_turns = np.ceil(context.n_steps / (keys * splits))
        secs += n_waves * (n_beside * _GROUP_SECS * warps / gpus.GROUP_WARPS + n_turns * turn)
    n_sums = context.n_batches * context.n_rows * context.n_columns
    last = gpus.last_secs(splits, n_sums)
    combined = np.where(is_one > 0, last, gpus.add_secs(splits, n_sums) + _COMBINE_SECS)
    return np.where(splits > 1, secs + combined, secs)


def _shared_bytes(attention: Attention, decisions: np.ndarray) -> np.ndarray:
    rows, keys, stages, _, splits, _ = decisions.T
    n_turns = -(-attention.context.n_steps // (keys * splits))
    width = _padded(attention.n_terms) + _padded(attention.n_values)
    n_bytes = gpus.BYTES[attention.context.dtype] * width
    staged: np.ndarray = n_bytes * (rows + keys * np.minimum(stages, n_turns)) * (rows > 1)
    return staged


def _configurations(context: Contraction, n_multiprocessors: int) -> Iterator[Configuration]:
    """Yield configurations; keys have parts where the rows do not fill a GPU."""
    # Without tensor cores, Triton loads nothing ahead.
    sums = itertools.product((1,), (16, 32, 64, 128), (1,), (2, 4, 8))
    products = itertools.product((16, 32, 64, 128), (32, 64, 128), (1, 2, 3), (4, 8))
    for rows, keys, n_stages, n_warps in (*(sums if context.n_rows == 1 else ()), *products):
        if rows > 16 and rows >= 2 * context.n_rows:
            continue
        n_blocks = context.n_batches * -(-context.n_rows // rows)
        n_turns = -(-context.n_steps // keys)
        largest = min(_BLOCKS_OF_SPLITS * n_multiprocessors // n_blocks, _MAX_SPLITS)
        splits = {-(-n_turns // turns) for turns in (1, 2, 3, 4, 6, 8, 12, 16)}
        few = {each for each in splits if each <= largest and n_blocks < n_multiprocessors}
        for n_splits in sorted({1} | few):
            yield Configuration(rows, keys, n_stages, n_warps, n_splits)
            if n_splits > 1:
                yield Configuration(rows, keys, n_stages, n_warps, n_splits, is_one_kernel=True)


def _padded(n: int) -> int:
    """Return the next power of two that tensor cores multiply."""
    return max(16, 1 << (n - 1).bit_length())
