"""Winograd's convolution: a quarter to a half of the products of a direct one.

For windows of 3 by 3 with stride 1, tiles of the input are transformed, multiplied by transformed
weights in (m + 2)² independent products of matrices, and the products transformed to m by m
outputs. The weights are transformed when a library is built; the padding is part of the first
transform, and bias, residual and activation follow the last one tile by tile.

Convolutions of bytes are computed in integers: data and weights are transformed to 16 bits, and
sums of their products are multiples of a result modulo 2**32.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import tvm
from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.target import Target
from tvm.tirx import Buffer, BufferStore, SeqStmt, Var

from tuner.engines.relax.graph.passes.products import dot_products
from tuner.engines.relax.ir.packed_layouts import PACKS
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import registers_of
from tuner.engines.relax.schedules.variants import winograd_schedule
from tuner.engines.relax.schedules.variants.convolutions import (
    DTYPE,
    Convolution,
    Point,
    statements_of,
)
from tuner.engines.relax.schedules.variants.nests import (
    Body,
    as_index,
    element,
    nest,
    new_buffer,
    region,
    shape_of,
    with_statements,
)
from tuner.engines.relax.schedules.variants.winograd_schedule import Choice
from tuner.engines.relax.schedules.variants.winograd_transforms import (
    N_TAPS,
    Array,
    Code,
    integer_matrices,
    matrices,
    max_exact,
)

# Output channels whose weights lie side by side.
_PANELS = (64, 32, 16)
# Outputs of a tile along each axis.
_SIZES = (4, 2)


@dataclass(frozen=True)
class Winograd:
    """Tiles of ``n_outputs`` by ``n_outputs`` outputs; see :class:`base.Variant`.

    Attributes:
        n_outputs: Rows and columns of a tile.
        is_integer: True for products of bytes, which are exact; False for float32.
    """

    n_outputs: int
    is_integer: bool = False

    @classmethod
    def named(cls, name: str) -> Self | None:
        """Return the variant of a name; None for another kind of variant."""
        every = (cls(size, is_integer) for size in _SIZES for is_integer in (False, True))
        return next((each for each in every if each.name == name), None)

    @property
    def name(self) -> str:
        """Name with the size of its tiles."""
        kind = "integer-" if self.is_integer else ""
        return f"{kind}winograd-{self.n_outputs}x{self.n_outputs}"

    @property
    def growth(self) -> float:
        return 1.0 if self.is_integer else matrices(self.n_outputs).growth

    def rewrite(self, module: tvm.IRModule) -> tvm.IRModule | None:
        convolution = self._find(module)
        if convolution is None:
            return None
        try:
            return winograd_schedule.inline(_Rewriting(convolution, self.n_outputs).module())
        except ScheduleError:  # what follows it is not elementwise
            return None

    def flop(self, module: tvm.IRModule) -> float:
        """See :class:`base.Variant`; the transforms count as little as they take."""
        convolution = self._find(module)
        if convolution is None:
            return 0.0
        rewriting = _Rewriting(convolution, self.n_outputs)
        return 2.0 * rewriting.n_products

    def _find(self, module: tvm.IRModule) -> Convolution | None:
        """Return the convolution of a workload; None if there is none that the variant fits."""
        convolution = Convolution.find(module["main"])
        if convolution is None or (convolution.instruction is not None) != self.is_integer:
            return None
        if self.is_integer and convolution.max_sum >= max_exact(self.n_outputs):
            return None
        return convolution

    def gain(self, program: tvm.IRModule, target: Target) -> float:
        sizes = winograd_schedule.sizes_of(program)
        n_positions = math.prod(shape_of(program["main"].params[-1])) // sizes.c_out
        registers, n_cores = registers_of(target), _n_cores(target)
        return winograd_schedule.estimate_gain(sizes, n_positions, registers, n_cores)

    def choices(self, program: tvm.IRModule, target: Target) -> list[Choice]:
        sizes = winograd_schedule.sizes_of(program)
        return winograd_schedule.choices(sizes, registers_of(target), _n_cores(target))

    def schedule(self, program: tvm.IRModule, target: Target, choice: Choice) -> Schedule:
        schedule = Schedule(program)
        winograd_schedule.apply(schedule, choice, registers_of(target).lanes)
        return schedule

    def name_of(self, _schedule: Schedule) -> str:
        return self.name


def _n_cores(target: Target) -> int:
    return int(target.attrs.get("num-cores", 1))


def variants_for(_module: tvm.IRModule, _target: Target | None) -> list[Winograd]:
    """Return the variants for any CPU."""
    return [Winograd(size, is_integer) for is_integer in (False, True) for size in _SIZES]


class _Rewriting:
    """The kernel with other statements in the place of its convolution."""

    def __init__(self, convolution: Convolution, n_outputs: int) -> None:
        self._of = convolution
        self._m, self._n = n_outputs, n_outputs + N_TAPS - 1
        by = self._by = convolution.instruction
        self._dtype, self._sum_dtype = (by.data, "int32") if by else (DTYPE, DTYPE)
        self._matrices = (integer_matrices if by else matrices)(n_outputs)
        self._batch, self._height, self._width, self._c_out = shape_of(convolution.output)
        self._c_in = int(convolution.data.shape[3])
        self._rows, self._columns = -(-self._height // n_outputs), -(-self._width // n_outputs)
        self._panel = by.lanes if by else next(s for s in _PANELS if self._c_out % s == 0)
        n, tiles = self._n**2, (self._batch, self._rows, self._columns)
        self._data = new_buffer("transformed_data", (n, *tiles, self._c_in), self._dtype)
        panel = (self._c_in // by.terms, by.lanes, by.terms) if by else (self._c_in, self._panel)
        self._weight = new_buffer(
            "transformed_weight", (n, self._c_out // self._panel, *panel), self._dtype
        )
        self._products = new_buffer("products", (n, *tiles, self._c_out), self._sum_dtype)
        size = (self._batch, self._rows * n_outputs, self._columns * n_outputs, self._c_out)
        self._outputs = new_buffer("outputs", size, self._sum_dtype)

    @property
    def n_products(self) -> int:
        """Multiplications of numbers in all products of matrices."""
        return self._n**2 * self._batch * self._rows * self._columns * self._c_in * self._c_out

    def module(self) -> tvm.IRModule:
        """Return the program."""
        function, position = self._of.function, self._of.position
        statements = statements_of(function)
        statements[position : position + 1] = [
            self._transform_weight(),
            self._transform_data(),
            self._multiply(),
            self._transform_products(),
            self._crop(),
        ]
        buffers = [self._data, self._weight, self._products, self._outputs]
        return with_statements(function, statements, [*function.body.block.alloc_buffers, *buffers])

    def _transform_weight(self) -> Any:
        weight = self._of.weight

        def body(panel: Var, c_in: Var, c_out: Var, *term: Var) -> Body:
            place = (panel, c_in, c_out, *term)
            if self._by:
                c_in = c_in * self._by.terms + term[0]
            c_out = panel * self._panel + c_out

            def read(i: int, j: int) -> Any:
                return weight[tuple(self._of.place(as_index(i), as_index(j), c_in, c_out))]

            whole = region(weight, [(0, size) for size in shape_of(weight)])
            statement = self._store(
                self._matrices.weights,
                (N_TAPS, read),
                self._weight,
                (as_index(0), *place),
            )
            across = [(0, int(self._weight.shape[0])), *((index, 1) for index in place)]
            return Body(statement, [whole], [region(self._weight, across)])

        extents = shape_of(self._weight)[1:]
        return nest("transform_weight", extents, body, annotations={PACKS: True})

    def _transform_data(self) -> Any:
        data, m, n = self._of.data, self._m, self._n
        sizes = shape_of(data)[1:3]

        # TVM moves a block into a loop only if a variable selects what it writes in each dimension.
        def body(all_: Var, batch: Var, row: Var, column: Var, channel: Var) -> Body:
            def read(i: int, j: int) -> Any:
                at = (row * m + i, column * m + j)
                value = data[batch, at[0], at[1], channel]
                # The last tiles may reach over the edge.
                inside = [
                    position < size
                    for position, size, count, k in zip(
                        at, sizes, (self._rows, self._columns), (i, j), strict=True
                    )
                    if (count - 1) * m + k >= size
                ]
                if not inside:
                    return value
                return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, self._dtype))

            point = (batch, row, column, channel)
            first = all_ * n**2
            statement = self._store(self._matrices.data, (n, read), self._data, (first, *point))
            window = [
                (tile * m, tirx.min(as_index(n), size - tile * m))
                for tile, size in zip((row, column), sizes, strict=True)
            ]
            reads = [region(data, [(batch, 1), *window, (channel, 1)])]
            writes = [region(self._data, [(first, n**2), *((index, 1) for index in point)])]
            return Body(statement, reads, writes)

        return nest("transform_data", [1, *shape_of(self._data)[1:]], body)

    def _multiply(self) -> Any:
        def body(*axes: Var) -> Body:
            *point, c_out, c_in = axes
            data, at = (*point, c_in), (*point, c_out)
            panel = (
                dot_products.place(c_out, (), c_in, self._by)
                if self._by
                else (c_out // self._panel, c_in, c_out % self._panel)
            )
            weight = (point[0], *panel)
            factors = self._data[data], self._weight[weight]
            if self._by:
                factors = tuple(tirx.Cast(self._sum_dtype, each) for each in factors)
            return Body(
                BufferStore(self._products, self._products[at] + factors[0] * factors[1], list(at)),
                [element(self._data, data), element(self._weight, weight)],
                [element(self._products, at)],
                BufferStore(self._products, tirx.const(0, self._sum_dtype), list(at)),
            )

        return nest("multiply", [*shape_of(self._products), self._c_in], body, n_reduced=1)

    def _transform_products(self) -> Any:
        m, n, lanes = self._m, self._n, self._by.lanes if self._by else 1
        dtype = f"{self._sum_dtype}x{lanes}" if self._by else self._sum_dtype

        def body(batch: Var, row: Var, column: Var, block: Var) -> Body:
            first = block * lanes
            channels = tirx.Ramp(first, as_index(1), lanes) if self._by else block

            def read(i: int, j: int) -> Any:
                return self._products[as_index(i * n + j), batch, row, column, channels]

            code = Code(dtype)
            tile = code.transform(self._matrices.outputs, n, read)
            for i, numbers in enumerate(tile):
                for j, number in enumerate(numbers):
                    at = [batch, row * m + i, column * m + j, channels]
                    value = code.divide(number, factors[i] * factors[j]) if factors else number
                    code.statements.append(BufferStore(self._outputs, value, at))
            point = [(batch, 1), (row, 1), (column, 1), (first, lanes)]
            corner = [(batch, 1), (row * m, m), (column * m, m), (first, lanes)]
            reads = [region(self._products, [(0, n**2), *point])]
            return Body(SeqStmt(code.statements), reads, [region(self._outputs, corner)])

        factors = self._matrices.factors
        *tiles, n_channels = shape_of(self._products)[1:]
        return nest("transform_products", [*tiles, n_channels // lanes], body)

    def _crop(self) -> Any:
        def body(*at: Var) -> Body:
            return Body(
                BufferStore(self._of.output, self._outputs[at], list(at)),
                [element(self._outputs, at)],
                [element(self._of.output, at)],
            )

        return nest("crop", shape_of(self._of.output), body)

    def _store(
        self, matrix: Array, tile: tuple[int, Callable[[int, int], Any]], into: Buffer, at: Point
    ) -> SeqStmt:
        """Return the code that transforms a tile and stores its numbers, the first at a point."""
        code = Code(self._dtype)
        numbers = itertools.chain.from_iterable(code.transform(matrix, *tile))
        first, *point = at
        for index, number in enumerate(list(numbers)):
            code.statements.append(BufferStore(into, number, [first + index, *point]))
        return SeqStmt(code.statements)
