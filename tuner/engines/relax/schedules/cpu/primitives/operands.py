"""Operands of a convolution or product: the axes of the output that each of them depends on."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.sym import Analyzer
from tvm.tirx import IndexMap

_SPATIAL = 0


@dataclass(frozen=True)
class Operand:
    """A tensor that a reduction reads.

    Attributes:
        axes: Axes of the output that its elements depend on; not those that choose a group.
        group: Elements of the last axis of the output that read the same numbers; 0 for all.
        stride: Elements of the tensor from one output to the next along the last axis but one.
    """

    axes: frozenset[int]
    group: int
    n_bytes: int
    stride: int = 1


def operands_of(module: tvm.IRModule) -> list[Operand]:
    """Return the operands of the largest reduction of a workload; none if it has none."""
    schedule = Schedule(module)
    statements = [
        schedule.get(block) for block in schedule.get_child_blocks(schedule.get_sblock("root"))
    ]
    reductions = [each for each in statements if len(_spatial(each)) < len(each.iter_vars)]
    if not reductions:
        return []
    largest = max(reductions, key=lambda each: math.prod(int(a.dom.extent) for a in each.iter_vars))
    written = [region.source for region in largest.writes]
    return [
        _operand(region, _spatial(largest))
        for region in largest.reads
        if not any(region.source.same_as(buffer) for buffer in written)
    ]


def _spatial(statement: Any) -> list[Any]:
    return [axis.var for axis in statement.iter_vars if int(axis.iter_type) == _SPATIAL]


def _operand(region: Any, axes: list[Any]) -> Operand:
    used, sizes = set(), []
    for dim in region.region:
        for variable, divisor in _uses(dim.min):
            number = next((i for i, axis in enumerate(axes) if axis.same_as(variable)), None)
            if number is None:
                continue
            if divisor > 1 and number == len(axes) - 1:
                sizes.append(divisor)
            else:
                used.add(number)
    buffer = region.source
    n_elements = math.prod(int(size) for size in buffer.shape)
    n_bytes = n_elements * tvm.DataType(str(buffer.dtype)).bits // 8
    strides = [_stride(dim.min, axes[-2]) for dim in region.region if len(axes) > 1]
    return Operand(frozenset(used), min(sizes, default=0), n_bytes, max(strides, default=0) or 1)


def _stride(index: Any, axis: Any) -> int:
    """Return the difference between an index and the next along an axis; 0 if it varies."""
    first, second = (
        IndexMap([axis], [index], None).map_indices([tirx.const(place, str(axis.ty.dtype))])[0]
        for place in (0, 1)
    )
    difference = Analyzer().simplify(second - first)
    return int(difference) if isinstance(difference, tirx.IntImm) else 0


def _uses(index: Any, divisor: int = 1) -> Iterator[tuple[Any, int]]:
    """Yield the variables of an index, each with the number that divides it."""
    a, b = getattr(index, "a", None), getattr(index, "b", None)
    if a is None or b is None:
        yield from ((variable, divisor) for variable in tvm.tirx.analysis.undefined_vars(index))
        return
    is_division = type(index).__name__ == "FloorDiv" and isinstance(b, tvm.tirx.IntImm)
    yield from _uses(a, divisor * int(b) if is_division else divisor)
    if not is_division:
        yield from _uses(b, divisor)
