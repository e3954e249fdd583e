"""Products and convolutions by oneDNN, as variants of a workload.

The outputs are divided into parts, by rows or by channels, which the threads of the kernel share:
each part is a call of oneDNN on one thread, and what follows the sums is computed when the part is
done. Weights are packed when a library is built. The name of a variant holds the parts and the
layout of the weights, so that its program follows from the workload alone.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import tvm
from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.target import Target
from tvm.tirx import BufferStore, Evaluate, Var

from tuner.engines.relax.graph.definitions import step_loops
from tuner.engines.relax.ir.packed_layouts import PACKS
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import registers_of
from tuner.engines.relax.schedules.variants.convolutions import statements_of
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
from tuner.engines.relax.schedules.variants.products import Product, Window
from tuner.engines.relax.target.kinds import is_cpu
from tuner.engines.runtime import onednn

_NAME = re.compile(r"onednn-(rows|channels)-([1-9]\d{0,5})-(16|24|32|48|64)")
_MIN_PANEL = 16
# oneDNN pads the terms of a product to a multiple of it.
_TERMS = 16
# Bytes of weights that stay in a private cache while the parts of a core follow each other, and of
# sums that do until what follows them is computed.
_KEPT_WEIGHTS, _KEPT_SUMS = 2**18, 2**18
_ELEMENT_BYTES = 4

# Names of blocks.
_CALL, _SUMS = "onednn_call", "onednn_sums"

Split = Literal["rows", "channels"]


@dataclass(frozen=True)
class Onednn:
    """Calls of oneDNN; see :class:`base.Variant`.

    Attributes:
        split: Dimension of the output that the parts divide: rows, or images, or channels.
        panel: Output channels whose weights lie side by side.
    """

    split: Split
    n_parts: int
    panel: int

    @classmethod
    def named(cls, name: str) -> Self | None:
        """Return the variant of a name; None for another kind of variant."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        split: Split = "rows" if match[1] == "rows" else "channels"
        return cls(split, int(match[2]), int(match[3]))

    @property
    def name(self) -> str:
        """Name with its parts and the panel of its weights."""
        return f"onednn-{self.split}-{self.n_parts}-{self.panel}"

    @property
    def is_by_channels(self) -> bool:
        """True if the parts divide the channels of the output."""
        return self.split == "channels"

    @property
    def growth(self) -> float:
        """See :class:`base.Variant`: it adds the same numbers as the definition."""
        return 1.0

    def rewrite(self, module: tvm.IRModule) -> tvm.IRModule | None:
        product = Product.find(module["main"])
        if product is None or not _fits(product, self):
            return None
        try:
            schedule = Schedule(_Rewriting(product, self).module())
            blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
            names = [str(schedule.get(block).name_hint) for block in blocks]
            for block in blocks[names.index(_SUMS) : -1]:
                schedule.compute_inline(block)
            program = schedule.mod
            self._apply(Schedule(program), 1)
        except (ScheduleError, ValueError):  # what follows it is not elementwise
            return None
        return program

    def flop(self, module: tvm.IRModule) -> float:
        product = Product.find(module["main"])
        return 0.0 if product is None else product.flop

    def gain(self, _program: tvm.IRModule, _target: Target) -> float:
        """See :class:`base.Variant`: a library folder needs oneDNN only if that was measured."""
        return 0.0

    def choices(self, _program: tvm.IRModule, _target: Target) -> list[int]:
        """See :class:`base.Variant`: oneDNN decides."""
        return [0]

    def schedule(self, program: tvm.IRModule, target: Target, _choice: int) -> Schedule:
        schedule = Schedule(program)
        self._apply(schedule, registers_of(target).lanes)
        return schedule

    def name_of(self, _schedule: Schedule) -> str:
        return self.name

    def _apply(self, schedule: Schedule, lanes: int) -> None:
        call = schedule.get_sblock(_CALL)
        last = schedule.get_output_blocks(schedule.get_sblock("root"))[0]
        loops = schedule.get_loops(last)
        extents = [int(schedule.get(loop).extent) for loop in loops]
        at = len(loops) - 1 if self.is_by_channels else _first_dimension(extents)
        size = -(-extents[at] // self.n_parts)
        parts, within = schedule.split(loops[at], [self.n_parts, size])
        schedule.reorder(parts, *loops[:at], within, *loops[at + 1 :])
        schedule.compute_at(call, parts)
        schedule.parallel(parts)
        _, vector = schedule.split(schedule.get_loops(last)[-1], [None, lanes])
        schedule.vectorize(vector)


def calls_onednn(target: Target) -> bool:
    """Return whether the kernels of a target may call oneDNN."""
    machine = str(target.attrs.get("mtriple", "x86_64")).partition("-")[0]
    is_supported = is_cpu(target) and machine == "x86_64"
    return is_supported and onednn.NAME in map(str, target.attrs.get("libs", ()))


def variants_for(module: tvm.IRModule, target: Target | None) -> Iterator[Onednn]:
    """Yield the variants that are worth a trial on a target.

    None where the library is missing: the panels that it asks for would be unknown.
    """
    if target is None or not calls_onednn(target) or onednn.problem():
        return
    product = Product.find(module["main"])
    if product is None or step_loops.is_serial(module):
        return
    n_cores = int(target.attrs.get("num-cores", 1))
    for split in ("rows", "channels"):
        n_parts = _n_parts(product, split, n_cores)
        if n_parts == 0:
            continue
        panel = _panel(product, split, n_parts)
        variant = Onednn(split, n_parts, panel) if panel else None
        if variant is not None and _fits(product, variant):
            yield variant


def _n_parts(product: Product, split: Split, n_cores: int) -> int:
    """Return the number of parts, some for each core; 0 if the output has too few."""
    shape = product.shape
    extent = shape[-1] if split == "channels" else shape[_first_dimension(shape)]
    unit = _MIN_PANEL if split == "channels" else 1
    most = extent // unit
    if most < n_cores:
        return 0
    if split == "channels":
        fitting = (n for n in range(n_cores, most + 1, n_cores) if extent % (n * unit) == 0)
        return next(fitting, 0)
    n_bytes = math.prod(shape) * _ELEMENT_BYTES
    n_small = -(-n_bytes // _KEPT_SUMS) if product.weight_bytes <= _KEPT_WEIGHTS else 1
    n_rounds = max(min(-(-n_small // n_cores), most // n_cores), 1)
    return -(-extent // -(-extent // (n_rounds * n_cores)))


def _panel(product: Product, split: Split, n_parts: int) -> int:
    c_out = product.shape[-1] // (n_parts if split == "channels" else 1)
    if product.is_matrix:
        n_rows = math.prod(product.shape[:-1])
        if split == "rows":
            n_rows = -(-n_rows // n_parts)
        return onednn.product_panel(n_rows, math.prod(product.reduced), c_out)
    rows = product.shape[1]
    if split == "rows" and product.shape[0] == 1:
        rows = -(-rows // n_parts)
    return onednn.panel(product.shape[0], *_window(product, c_out), 0, rows)


def _fits(product: Product, variant: Onednn) -> bool:
    shape = product.shape
    if product.is_matrix and math.prod(product.reduced) % _TERMS:
        return False
    if variant.is_by_channels:
        return shape[-1] % (variant.n_parts * variant.panel) == 0
    at = _first_dimension(shape)
    size = -(-shape[at] // variant.n_parts)
    is_divided = size * (variant.n_parts - 1) < shape[at]
    return is_divided and at < product.n_divisible and shape[-1] % variant.panel == 0


def _first_dimension(shape: Sequence[int]) -> int:
    """Return the first dimension of an output that has a size, not counting its channels."""
    return next((i for i, size in enumerate(shape[:-1]) if size > 1), 0)


def _window(product: Product, c_out: int) -> list[int]:
    """Return the arguments of a call, after the images, that do not depend on the part."""
    _, height, width, c_in = shape_of(product.data)
    window = product.window or Window((1, 1))
    return [
        *(height, width, c_in, product.shape[2], c_out),
        *window.size,
        *window.strides,
        *window.dilation,
        *window.before,
    ]


class _Rewriting:
    """The kernel with calls in the place of its product or convolution."""

    def __init__(self, product: Product, variant: Onednn) -> None:
        self._of, self._by = product, variant
        self._at = _first_dimension(product.shape)
        shape, n = product.shape, variant.n_parts
        if variant.is_by_channels:
            parts = [n, *shape[:-1], shape[-1] // n]
        else:
            parts = [n, -(-shape[self._at] // n), *shape[self._at + 1 :]]
        self._sums = new_buffer("sums_of_parts", parts)
        panels = [shape[-1] // variant.panel, *product.reduced, variant.panel]
        self._weight = new_buffer("packed_weight", panels)

    def module(self) -> tvm.IRModule:
        """Return the program."""
        function = self._of.function
        statements = statements_of(function)
        statements[self._of.position : self._of.position + 1] = [
            self._pack(),
            self._call(),
            self._assemble(),
        ]
        if self._of.padding is not None:
            del statements[self._of.padding]
        buffers = function.body.block.alloc_buffers
        kept = [each for each in buffers if not each.same_as(self._of.padded)]
        return with_statements(function, statements, [*kept, self._weight, self._sums])

    def _pack(self) -> Any:
        weight, order, panel = self._of.weight, self._of.order, self._by.panel

        def body(number: Var, *rest: Var) -> Body:
            *reduced, c_out = rest
            roles = (*reduced, number * panel + c_out)
            at = [roles[role] for role in order]
            into = (number, *rest)
            return Body(
                BufferStore(self._weight, weight[tuple(at)], list(into)),
                [element(weight, at)],
                [element(self._weight, into)],
            )

        return nest("onednn_weight", shape_of(self._weight), body, annotations={PACKS: True})

    def _call(self) -> Any:
        sizes = shape_of(self._sums)[1:]

        # TVM moves a block into a loop only if a variable selects what it writes in each dimension.
        def body(part: Var, *rest: Var) -> Body:
            whole = [
                region(each, [(0, size) for size in shape_of(each)])
                for each in (self._of.data, self._weight)
            ]
            ranges = [(each * size, size) for each, size in zip(rest, sizes, strict=True)]
            written = region(self._sums, [(part, 1), *ranges])
            return Body(Evaluate(self._arguments(part)), whole, [written])

        return nest(_CALL, [self._by.n_parts, *(1 for _ in sizes)], body)

    def _arguments(self, part: Var) -> Any:
        """Return the call of a part."""
        product, shape = self._of, self._of.shape
        data = [0 for _ in shape_of(product.data)]
        weight = [0 for _ in shape_of(self._weight)]
        c_out, is_rows = shape[-1], not self._by.is_by_channels
        size = shape_of(self._sums)[1]
        first = part * size
        n = tirx.min(as_index(size), shape[self._at] - first)
        if not is_rows:
            c_out //= self._by.n_parts
            weight[0] = part * (c_out // self._by.panel)
        if product.is_matrix:
            c_in = math.prod(product.reduced)
            n_rows: Any = math.prod(shape[:-1])
            if is_rows:
                data[self._at] = first
                n_rows = n * math.prod(shape[self._at + 1 : -1])
            name, numbers = "tuner_onednn_product", [n_rows, c_in, c_out]
        else:
            batch, rows = (shape[0], (0, shape[1]))
            if is_rows and self._at == 0:
                batch, data[0] = n, first
            elif is_rows:
                rows = (first, n)
            name, numbers = "tuner_onednn_convolve", [batch, *_window(product, c_out), *rows]
        firsts = (
            (product.data, data),
            (self._weight, weight),
            (self._sums, [part, *(0 for _ in shape_of(self._sums)[1:])]),
        )
        # Unlike the offset of a pointer, indices change with the buffer when TVM shrinks it.
        pointers = (tirx.address_of(buffer[tuple(map(as_index, at))]) for buffer, at in firsts)
        # Not the type of indices, which TVM may narrow after this.
        sizes = [tirx.Cast("int32", as_index(each)) for each in (*numbers, self._by.panel)]
        return tirx.call_extern("void", name, *sizes, *pointers)

    def _assemble(self) -> Any:
        at_dimension, size = self._at, shape_of(self._sums)[-1 if self._by.is_by_channels else 1]

        def body(*at: Var) -> Body:
            if self._by.is_by_channels:
                read = [at[-1] // size, *at[:-1], at[-1] % size]
            else:
                row = at[at_dimension]
                read = [row // size, row % size, *at[at_dimension + 1 :]]
            return Body(
                BufferStore(self._of.output, self._sums[tuple(read)], list(at)),
                [element(self._sums, read)],
                [element(self._of.output, at)],
            )

        return nest(_SUMS, self._of.shape, body)
