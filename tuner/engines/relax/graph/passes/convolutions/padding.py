"""Padding of the output channels of convolutions and products to whole vectors.

The schedules of MetaSchedule tile perfectly: 1,000 channels are vectorised by 8 at most, half of an
AVX-512 register, and 58 channels by nothing. A convolution with 1,008 channels whose last 8 are
dropped costs 0.8 % more arithmetic and runs on whole vectors. The slice that drops them moves
behind all that treats channels apart, and vanishes where the next convolution or product multiplies
the padding with zeros.
"""

import math
from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.layout.scope import with_attrs
from tuner.engines.relax.graph.passes.products.dot_products import is_integer_product
from tuner.engines.relax.graph.passes.visitor import Array, CallVisitor, const, dtype_of, name_of
from tuner.engines.relax.ir.tensor_types import shape_of
from tuner.engines.relax.schedules.cpu.primitives.operands import Operand
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import Registers, product_cycles

# Time of the padded product with what the padding adds elsewhere, over the time without padding.
_MAX_SHARE = 0.75
# Cycles of the copy of a vector, and of a further kernel.
_COPY_CYCLES, _CALL_CYCLES = 8, 2000
_ELEMENT_BYTES = 4
# Least step of widths, and the slow-downs of rows that end in a part of a vector, or in single
# numbers.
_MIN_STEP, _UNALIGNED, _ODD = 4, 1.5, 4.0

_ELEMENTWISE = {
    *("clip", "sigmoid", "tanh", "erf", "abs", "negative", "nn.relu", "nn.silu", "nn.gelu"),
    *("nn.gelu_tanh", "nn.leakyrelu", "nn.relu6", "hard_sigmoid", "hard_swish"),
    *("astype", "round"),
}
_QUANTISATIONS = {"quantize", "dequantize"}
_BINARY = {"add", "subtract", "multiply", "divide", "maximum", "minimum"}
_REDUCTIONS = {"mean", "sum", "max", "min"}
_CONVOLUTIONS = {
    "nn.conv1d": ("NWC", "OWI"),
    "nn.conv2d": ("NHWC", "OHWI"),
    "nn.conv3d": ("NDHWC", "ODHWI"),
}
_CHANNELS_LAST = {layout for layout, _ in _CONVOLUTIONS.values()}
_DTYPES = {"float16", "float32", "float64", "int8"}
_MATRIX = 2


def pad_channels(module: tvm.IRModule, registers: Registers) -> tvm.IRModule:
    """Pad convolutions and products with constant weights where whole vectors save more than that.

    Args:
        module: Module whose convolutions are channels last.
        registers: Vector registers of the target.
    """
    return _Padder(module, registers).run(module)


@mutator
class _Padder(CallVisitor):
    """Mutator that widens convolutions and products, and moves the slices of their results down.

    A slice fused into a convolution would be paid for every pixel, and TVM computes some schedules
    of that kernel wrong; behind a global pooling it is a thousand numbers. What is computed from
    the padding is finite where the network is, so that zeros cancel it.
    """

    def __init__(self, module: tvm.IRModule, registers: Registers) -> None:
        super().__init__(module)
        self._registers = registers
        # The wide value that each slice of this mutator was taken from.
        self._wide: dict[relax.Var, relax.Var] = {}

    def rewrite(self, _original: relax.Call, call: relax.Call) -> relax.Expr:
        """Rewrite one call; calls without padding stay."""
        name = name_of(call)
        if name in _CONVOLUTIONS:
            return self._convolve(call)
        if name == "matmul":
            return self._multiply(call)
        if name in _BINARY:
            return self._combine(call)
        if self._wide_of(call.args[0] if len(call.args) else call) is None:
            return call
        return self._sink(call)

    def _sink(self, call: relax.Call) -> relax.Expr:
        """Turn op(slice(wide)) into slice(op(wide)) for an operator of one tensor."""
        wide = self._wide_of(call.args[0])
        n_channels = shape_of(call.args[0])[-1]
        if wide is None:
            return call
        if name_of(call) == "reshape":
            shape = shape_of(call)
            if not shape or shape[-1] != n_channels:
                return call
            wider = relax.op.reshape(wide, (*shape[:-1], shape_of(wide)[-1]))
        elif _treats_channels_apart(call):
            wider = relax.Call(call.op, [wide, *call.args[1:]], call.attrs, call.ty_args)
        else:
            return call
        return self._slice(self.emit(wider), n_channels)

    def _combine(self, call: relax.Call) -> relax.Expr:
        """Turn slice(a) + slice(b), and slice(a) + constant, into a slice of the sum."""
        n_channels = shape_of(call)[-1] if shape_of(call) else 1
        wides = [self._wide_of(arg) for arg in call.args]
        widths = {shape_of(wide)[-1] for wide in wides if wide is not None}
        if len(widths) != 1 or n_channels == 1:
            return call
        (width,) = widths
        args = []
        for number, (arg, wide) in enumerate(zip(call.args, wides, strict=True)):
            # Zeros of the padding must divide nothing.
            is_divisor = number == 1 and name_of(call) == "divide"
            widened = wide if wide is not None else self._widened(arg, n_channels, width)
            if widened is None or (is_divisor and self.constant(arg) is None):
                return call
            args.append(widened)
        return self._slice(
            self.emit(relax.Call(call.op, args, call.attrs, call.ty_args)), n_channels
        )

    def _widened(self, expr: relax.Expr, n_channels: int, width: int) -> relax.Expr | None:
        """Return an operand without slice so that it broadcasts to wider channels."""
        shape = shape_of(expr)
        if not shape or shape[-1] == 1:
            return expr
        value = self.constant(expr)
        if value is None or shape[-1] != n_channels:
            return None
        # Ones, so that a division by the padding stays finite.
        return const(_pad(value, -1, width, fill=1.0), dtype_of(expr))

    def _convolve(self, call: relax.Call) -> relax.Expr:
        layouts = (str(call.attrs.data_layout), str(call.attrs.kernel_layout))
        weight = self._weight(call)
        if weight is None or layouts != _CONVOLUTIONS[name_of(call)]:
            return call
        data, n_channels = call.args[0], weight.shape[0]
        wide = self._wide_of(data)
        groups = int(call.attrs.groups)
        if groups > 1:
            n_channels = weight.shape[0]
            is_depthwise = weight.shape[-1] == 1 and int(call.attrs.groups) == n_channels
            if wide is None or not is_depthwise:
                return call
            width = shape_of(wide)[-1]
            args = [wide, const(_pad(weight, 0, width), dtype_of(call.args[1]))]
            wider = with_attrs(call, args, groups=width)
            return self._slice(self.emit(wider), n_channels)
        if wide is not None:
            data, weight = wide, _pad(weight, -1, shape_of(wide)[-1])
        width = self._width(call, weight.size // n_channels)
        if wide is None and width == n_channels:
            return call
        weight = _pad(weight, 0, width)
        wider = relax.Call(
            call.op, [data, const(weight, dtype_of(call.args[1]))], call.attrs, call.ty_args
        )
        return wider if width == n_channels else self._slice(self.emit(wider), n_channels)

    def _multiply(self, call: relax.Call) -> relax.Expr:
        weight = self._weight(call)
        if weight is None or weight.ndim != _MATRIX or len(shape_of(call)) < _MATRIX:
            return call
        data, wide = call.args[0], self._wide_of(call.args[0])
        if wide is not None:
            data, weight = wide, _pad(weight, 0, shape_of(wide)[-1])
        n_terms, n_columns = weight.shape
        width = self._width(call, n_terms)
        if wide is None and width == n_columns:
            return call
        weight = _pad(weight, 1, width)
        wider = relax.Call(
            call.op, [data, const(weight, dtype_of(call.args[1]))], call.attrs, call.ty_args
        )
        return wider if width == n_columns else self._slice(self.emit(wider), n_columns)

    def _weight(self, call: relax.Call) -> Array | None:
        return self.constant(call.args[1]) if dtype_of(call.args[1]) in _DTYPES else None

    def _width(self, call: relax.Call, n_terms: int) -> int:
        shape = shape_of(call)
        if is_integer_product(call):
            lanes = self._registers.lanes
            return -(-shape[-1] // lanes) * lanes
        return choose_width(shape, n_terms, self._registers)

    def _wide_of(self, expr: relax.Expr) -> relax.Var | None:
        """Return the value that an expression is a slice of; None if it is another."""
        while isinstance(expr, relax.Var) and expr not in self._wide:
            expr = self.lookup_binding(expr)
        return self._wide.get(expr) if isinstance(expr, relax.Var) else None

    def _slice(self, wide: relax.Var, n_channels: int) -> relax.Var:
        axis = len(shape_of(wide)) - 1
        sliced = self.emit(relax.op.strided_slice(wide, axes=[axis], begin=[0], end=[n_channels]))
        self._wide[sliced] = wide
        return sliced


def _treats_channels_apart(call: relax.Call) -> bool:
    """Return True if each channel of the result depends on that of the first operand alone."""
    name, attrs, rank = name_of(call), call.attrs, len(shape_of(call.args[0]))
    if name in _ELEMENTWISE:
        return True
    if name in _QUANTISATIONS:
        return all(math.prod(shape_of(arg)) == 1 for arg in call.args[1:])
    if name in _REDUCTIONS:
        axes = [int(axis) % rank for axis in attrs.axis or ()]
        return bool(axes) and rank - 1 not in axes
    if name == "nn.pad":
        return not any(int(width) for width in attrs.pad_width[-2:])
    is_pooling = name.startswith(("nn.max_pool", "nn.avg_pool", "nn.adaptive_avg_pool"))
    if is_pooling or name.startswith("image.resize"):
        return str(attrs.layout) in _CHANNELS_LAST
    return False


def _pad(value: Array, axis: int, width: int, fill: float = 0.0) -> Array:
    """Pad an axis at its end to a width."""
    padding = [(0, 0)] * value.ndim
    padding[axis] = (0, width - value.shape[axis])
    return np.pad(value, padding, constant_values=fill)


def choose_width(shape: Sequence[int], n_terms: int, registers: Registers) -> int:
    """Return the channels that a convolution or product with constant weights should compute.

    What reads the result multiplies the padding too, or a copy drops it: both count.

    Args:
        shape: Shape of the result, channels last.
        n_terms: Products that are added to each element of it.
        registers: Vector registers of the target.

    Returns:
        A multiple of a power of two up to a whole vector, or the channels that there are.
    """
    *rows, n_channels = shape
    n_rows = math.prod(rows)
    data = Operand(frozenset(range(len(rows))), 0, n_rows * n_terms * _ELEMENT_BYTES)

    def cycles(width: int) -> float:
        weights = Operand(frozenset({len(rows)}), 0, width * n_terms * _ELEMENT_BYTES)
        n_cycles = n_terms * product_cycles([*rows, width], [data, weights], registers)
        # Vectors cross the lines of rows that begin anywhere, here and in all that reads them.
        if width % registers.lanes:
            n_cycles *= _ODD if width % _MIN_STEP else _UNALIGNED
        return n_cycles

    unpadded = cycles(n_channels)

    def share(width: int) -> float:
        copies = n_rows * math.ceil(n_channels / registers.lanes) * _COPY_CYCLES + _CALL_CYCLES
        waste = width / n_channels - 1
        return (cycles(width) + copies) / unpadded + waste

    if not n_terms * n_rows * n_channels:
        return n_channels
    steps = [step for step in (_MIN_STEP, 8, 16) if step <= registers.lanes]
    widths = {math.ceil(n_channels / step) * step for step in steps} - {n_channels}
    best = min(widths, key=share, default=n_channels)
    return best if best == n_channels or share(best) <= _MAX_SHARE else n_channels
