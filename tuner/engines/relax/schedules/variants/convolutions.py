"""Convolutions that Winograd's variant computes, found in the blocks of a kernel."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from tvm import tirx
from tvm.tirx import Buffer, BufferStore, For, PrimFunc, SeqStmt, Var

from tuner.engines.relax.packed_layouts import LAYOUT_FREE
from tuner.engines.relax.schedules.variants.winograd_transforms import N_TAPS

#: Types of the numbers and of the indices.
DTYPE, INDEX = "float32", "int64"
_REDUCTION = 2
# Channels are a multiple of it.
_MULTIPLE = 16

Point = Sequence[Any]
_T = TypeVar("_T")


class Convolution(NamedTuple):
    """A convolution of 3 by 3, stride 1, in a kernel.

    Attributes:
        function: The kernel.
        position: Number of its statement in the kernel.
        data: Padded input, NHWC.
        weight: Weights, in any order.
        order: Position in (row, column, input, output) of each dimension of the weights.
        output: Sums, NHWC.
    """

    function: PrimFunc
    position: int
    data: Buffer
    weight: Buffer
    order: tuple[int, ...]
    output: Buffer

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
        data, weight = product.a, product.b
        if not all(hasattr(each, "source") and len(each.indices) == 4 for each in (data, weight)):
            return None
        dtypes = {str(each.dtype) for each in (data.source, weight.source, store.buffer)}
        indices = {str(axis.var.ty.dtype) for axis in block.iter_vars}
        if dtypes != {DTYPE} or indices != {INDEX}:
            return None
        row, column, channel = _window(list(data.indices), list(store.indices), reduced)
        if row is None or column is None or channel is None:
            return None
        roles = (row, column, channel, store.indices[3])
        order = tuple(position_of(each, roles) for each in weight.indices)
        fits = (
            sorted(order) == [0, 1, 2, 3]
            and [int(weight.source.shape[order.index(axis)]) for axis in (0, 1)] == [N_TAPS] * 2
            and int(data.source.shape[3]) % _MULTIPLE == 0
            and int(store.buffer.shape[3]) % _MULTIPLE == 0
            and is_constant(function, weight.source)
        )
        return (
            cls(function, position, data.source, weight.source, order, store.buffer)
            if fits
            else None
        )


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
