"""Convolutions that Winograd's variant computes, match in the blocks of a kernel."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, TypeVar

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock
from tvm.tirx import Buffer, BufferStore, Cast, For, PrimFunc, SeqStmt, Var

from tuner.engines.relax.codegen.cpu.dot_instructions import DotInstruction, packed_for
from tuner.engines.relax.graph.passes.products import dot_products
from tuner.engines.relax.graph.passes.products.product_sums import LARGEST
from tuner.engines.relax.graph.passes.products.quantised_operands import HALF
from tuner.engines.relax.ir.packed_layouts import LAYOUT_FREE, PACKS
from tuner.engines.relax.schedules.variants.winograd_transforms import N_TAPS

#: Types of the numbers and of the indices.
DTYPE, INDEX = "float32", "int64"
_REDUCTION = 2
#: Winograd tiles need channel counts divisible by this.
MULTIPLE = 16

Point = Sequence[Any]
_T = TypeVar("_T")


class Convolution(NamedTuple):
    """A convolution of 3 by 3, stride 1, in a kernel.

    Attributes:
        position: Number of its statement in the kernel.
        data: Padded input, NHWC.
        weight: Weights.
        place: Indices of the weight of a row, a column, an input and an output.
        output: Sums, NHWC.
        max_sum: Bound of the magnitude of sums of integers.
        instruction: Instruction that weights are packed for; None for those in float32.
    """

    function: PrimFunc
    position: int
    data: Buffer
    weight: Buffer
    place: Callable[..., Point]
    output: Buffer
    max_sum: int = 0
    instruction: DotInstruction | None = None

    @classmethod
    def find(cls, function: PrimFunc) -> Self | None:
        """Return the only convolution of a kernel, if the variant fits it."""
        return only_match(function, cls._match)

    @classmethod
    def _match(cls, function: PrimFunc, position: int, statement: Any) -> Self | None:
        block = block_of(statement)
        store = getattr(block, "body", None)
        if not isinstance(store, BufferStore) or not isinstance(store.value, tirx.Add):
            return None
        reduced = [axis.var for axis in block.iter_vars if int(axis.iter_type) == _REDUCTION]
        product = store.value.b
        if len(reduced) != 3 or len(store.indices) != 4 or not isinstance(product, tirx.Mul):
            return None
        data, weight = (
            each.value if isinstance(each, Cast) else each for each in (product.a, product.b)
        )
        if not all(hasattr(each, "source") for each in (data, weight)) or len(data.indices) != 4:
            return None
        indices = {str(axis.var.ty.dtype) for axis in block.iter_vars}
        row, column, channel = _window(list(data.indices), list(store.indices), reduced)
        if indices != {INDEX} or row is None or column is None or channel is None:
            return None
        roles = (row, column, channel, store.indices[3])
        dtypes = tuple(str(each.dtype) for each in (data.source, weight.source, store.buffer))
        of_any = cls(function, position, data.source, weight.source, tuple, store.buffer)
        if dtypes == (DTYPE,) * 3:
            match = of_any._of_floats(weight.indices, roles)
        else:
            match = of_any._of_bytes(dtypes, block, weight.indices, roles)
        channels = (int(each.shape[3]) for each in (data.source, store.buffer))
        return None if any(n % MULTIPLE for n in channels) else match

    def _of_floats(self, read: Point, roles: Point) -> Self | None:
        """Return a convolution in float32 with its weights, in any order."""
        order = tuple(position_of(each, roles) for each in read)
        fits = (
            sorted(order) == [0, 1, 2, 3]
            and [int(self.weight.shape[order.index(axis)]) for axis in (0, 1)] == [N_TAPS] * 2
            and is_constant(self.function, self.weight)
        )
        return self._replace(place=lambda *at: [at[role] for role in order]) if fits else None

    def _of_bytes(
        self, dtypes: Sequence[str], block: SBlock, read: Point, roles: Point
    ) -> Self | None:
        """Return a convolution of bytes with its weights, as they are packed and widened."""
        by = packed_for(self.weight)
        if by is None or by.accumulates or tuple(dtypes) != (by.data, by.weight, "int32"):
            return None

        def place(row: Any, column: Any, c_in: Any, c_out: Any) -> Point:
            return dot_products.place(c_out, (row, column), c_in, by)

        widening = [block_of(each) for each in statements_of(self.function)]
        fits = (
            tvm_ffi.structural_equal(list(read), list(place(*roles)))
            and [int(size) for size in self.weight.shape[1:3]] == [N_TAPS] * 2
            and any(
                PACKS in each.annotations and each.writes[0].source.same_as(self.weight)
                for each in widening
            )
        )
        max_sum = LARGEST * HALF * N_TAPS**2 * int(self.data.shape[3])
        if dot_products.HAS_FEW_BITS in block.annotations:
            max_sum = min(max_sum, dot_products.FEW_BITS - 1)
        return self._replace(place=place, max_sum=max_sum, instruction=by) if fits else None


def _window(read: Point, written: Point, reduced: Sequence[Var]) -> tuple[Any, Any, Any]:
    """Return the variables of rows, columns and channels that a convolution sums over."""

    def tap(index: Any, outer: Any) -> Any:
        """Return the reduced variable of ``outer + variable``."""
        if not isinstance(index, tirx.Add) or not index.a.same_as(outer):
            return None
        return next((each for each in reduced if each.same_as(index.b)), None)

    if not read[0].same_as(written[0]):
        return None, None, None
    channel = next((each for each in reduced if each.same_as(read[3])), None)
    return tap(read[1], written[1]), tap(read[2], written[2]), channel


def position_of(variable: Any, roles: Sequence[Any]) -> int:
    """Return the position of an index among others; -1 if it is none of them."""
    return next((i for i, role in enumerate(roles) if role.same_as(variable)), -1)


def is_constant(function: PrimFunc, buffer: Buffer) -> bool:
    """Return whether an argument of a kernel is a constant of every network."""
    indices = [int(index) for index in (function.attrs or {}).get(LAYOUT_FREE, ())]
    return any(function.params[index].same_as(buffer) for index in indices)


def statements_of(function: PrimFunc) -> list[Any]:
    """Return the statements of a kernel, one for each of its blocks."""
    body = function.body.block.body
    return list(body.seq) if isinstance(body, SeqStmt) else [body]


def block_of(statement: Any) -> Any:
    """Return the block inside of loops; None if there is none."""
    while isinstance(statement, For):
        statement = statement.body
    return getattr(statement, "block", None)


def only_match(function: PrimFunc, match: Callable[[PrimFunc, int, Any], _T | None]) -> _T | None:
    """Return what matches a statement of a kernel, by its number; None unless it is exactly one."""
    every = (match(function, *numbered) for numbered in enumerate(statements_of(function)))
    matches = [each for each in every if each is not None]
    return matches[0] if len(matches) == 1 else None
