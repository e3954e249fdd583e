"""Removal of reshapes between operators that would fuse without them.

A dense layer on a sequence is exported as reshape, product, reshape. A reshape on its own costs
nothing, but it ends a kernel: what follows is fused only if the reshape moves behind it. So
reshapes sink through elementwise operators and normalisations, merge, and vanish in the end. So do
expansions to the shape itself; one place of an axis is a slice.
"""

import math

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.fold import fold_constants
from tuner.engines.relax.graph.passes import masked_softmax
from tuner.engines.relax.graph.passes.visitor import CallVisitor, name_of
from tuner.engines.relax.ir.tensor_types import shape_of

_RESHAPES = {"reshape", "squeeze", "expand_dims", "flatten", "nn.batch_flatten"}
_UNARY = {
    *("abs", "astype", "ceil", "clip", "cos", "erf", "exp", "floor", "log", "negative", "round"),
    *("rsqrt", "sigmoid", "sign", "sin", "sqrt", "square", "tanh"),
    *("nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.relu6", "nn.selu", "nn.silu"),
    *("nn.softplus", "hard_sigmoid", "hard_swish"),
}
_BINARY = {"add", "subtract", "multiply", "divide", "maximum", "minimum", "power"}
_NORMS = {"nn.layer_norm", "nn.rms_norm"}
_SOFTMAX = {"nn.softmax", masked_softmax.NAME}
_PRODUCTS = (
    *("relax.matmul", "relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d"),
    *("relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose", "relax.nn.conv3d_transpose"),
)
_MATRIX = 2
_MAX_CHAIN = 32

Shape = tuple[int, ...]


def sink_reshapes(module: tvm.IRModule) -> tvm.IRModule:
    """Move reshapes behind elementwise operators and normalisations, and flatten dense layers."""
    return fold_constants(_Sinker(module).run(module))


@mutator
class _Sinker(CallVisitor):
    """Mutator that computes calls on the operand of a reshape and reshapes their result."""

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self._rows: dict[tuple[relax.Var, Shape], relax.Var] = {}

    def rewrite(self, _original: relax.Call, call: relax.Call) -> relax.Expr:
        """Rewrite one call."""
        name = name_of(call)
        is_same = name == "broadcast_to" and shape_of(call.args[0]) == shape_of(call)
        if name in _RESHAPES or is_same:
            # Merged with the one before it, or dropped if it changes nothing.
            source = self._unshaped(call.args[0])
            is_whole = shape_of(source) == shape_of(call)
            return source if is_whole else relax.op.reshape(source, shape_of(call))
        if name == "take":
            return self._slice(call)
        if name in _UNARY:
            return self._sink_unary(call)
        if name in _BINARY:
            return self._sink_binary(call)
        if name in _NORMS | _SOFTMAX:
            return self._sink_trailing(call)
        return self._flatten(call) if name == "matmul" else call

    def _slice(self, call: relax.Call) -> relax.Expr:
        """Read one constant place of an axis as a slice, which fuses and is a view of attention."""
        place, axis = self.scalar(call.args[1]), call.attrs.axis
        if place is None or axis is None:
            return call
        extent = shape_of(call.args[0])[int(axis)]
        if not -extent <= place < extent:
            return call
        begin = int(place) % extent
        part = relax.op.strided_slice(call.args[0], [int(axis)], [begin], [begin + 1])
        return relax.op.reshape(self.emit(part), shape_of(call))

    def _sink_unary(self, call: relax.Call) -> relax.Expr:
        source = self._unshaped(call.args[0])
        if source.same_as(call.args[0]):
            return call
        return self._again(call, [source, *call.args[1:]])

    def _sink_binary(self, call: relax.Call) -> relax.Expr:
        for index, (operand, other) in enumerate((call.args, call.args[::-1])):
            source = self._unshaped(operand)
            if source.same_as(operand) or shape_of(operand) != shape_of(call):
                continue
            if not self._follows_product(source) and self._follows_product(other):
                continue  # the other operand would no longer be fused into its product
            viewed = self._view(other, shape_of(operand), shape_of(source))
            if viewed is not None:
                return self._again(call, [source, viewed] if index == 0 else [viewed, source])
        return call

    def _sink_trailing(self, call: relax.Call) -> relax.Expr:
        """Sink a reshape that leaves the normalised axes, the last ones, alone."""
        source, shape = self._unshaped(call.args[0]), shape_of(call)
        attrs, rank = call.attrs, len(shape)
        is_masked = name_of(call) == masked_softmax.NAME
        is_softmax = name_of(call) == "nn.softmax"
        given = [-1] if is_masked else [attrs.axis] if is_softmax else attrs.axes
        axes = sorted(int(axis) % rank for axis in given)
        n_axes = len(axes)
        if source.same_as(call.args[0]) or axes != list(range(rank - n_axes, rank)):
            return call
        if shape_of(source)[-n_axes:] != shape[-n_axes:] or len(shape_of(source)) == n_axes:
            return call
        moved = list(range(-n_axes, 0))
        if is_masked:
            result = relax.Call(call.op, [source], attrs)
        elif is_softmax:
            result = relax.op.nn.softmax(source, -1)
        elif name_of(call) == "nn.rms_norm":
            result = relax.op.nn.rms_norm(source, call.args[1], moved, attrs.epsilon)
        else:
            result = relax.op.nn.layer_norm(
                source, *call.args[1:], moved, attrs.epsilon, attrs.center, attrs.scale
            )
        return relax.op.reshape(self.emit(result), shape)

    def _flatten(self, call: relax.Call) -> relax.Expr:
        """Compute a product with one matrix on two axes."""
        data, weight = call.args
        shape = shape_of(data)
        if len(shape_of(weight)) != _MATRIX or len(shape) <= _MATRIX:
            return call
        rows = self._rows_of(self._unshaped(data), (math.prod(shape[:-1]), shape[-1]))
        product = relax.Call(call.op, [rows, weight], call.attrs, call.ty_args)
        return relax.op.reshape(self.emit(product), shape_of(call))

    def _rows_of(self, data: relax.Expr, shape: Shape) -> relax.Expr:
        """Return data as a matrix; the products of the same rows share it."""
        if shape_of(data) == shape:
            return data
        if not isinstance(data, relax.Var):
            return self.emit(relax.op.reshape(data, shape))
        if (data, shape) not in self._rows:
            self._rows[data, shape] = self.emit(relax.op.reshape(data, shape))
        return self._rows[data, shape]

    def _again(self, call: relax.Call, args: list[relax.Expr]) -> relax.Expr:
        moved = self.emit(relax.Call(call.op, args, call.attrs, call.ty_args))
        return relax.op.reshape(moved, shape_of(call))

    def _unshaped(self, expr: relax.Expr) -> relax.Expr:
        """Return the operand of a reshape; other values as they are."""
        names = [f"relax.{name}" for name in _RESHAPES]
        call = self.producer(expr, *names)
        return expr if call is None else call.args[0]

    def _view(self, expr: relax.Expr, old: Shape, new: Shape) -> relax.Expr | None:
        """Reshape what broadcasts to a shape so that it broadcasts to its reshape."""
        shape = shape_of(expr)
        if math.prod(shape) == 1:
            return expr if len(shape) <= len(new) else relax.op.reshape(expr, (1,))
        source = self._unshaped(expr)
        if shape_of(source) == new:
            return source
        viewed = _reshape_broadcast(shape, old, new)
        return None if viewed is None else self.emit(relax.op.reshape(source, viewed))

    def _follows_product(self, expr: relax.Expr) -> bool:
        """Return whether a value is computed elementwise from a product or convolution."""
        for _ in range(_MAX_CHAIN):
            call = self.producer(expr)
            if call is None:
                return False
            if call.op.name in _PRODUCTS:
                return True
            if name_of(call) not in _UNARY | _BINARY | _RESHAPES:
                return False
            # Constants were reshaped as what they broadcast to.
            sources = map(self._unshaped, call.args)
            expr = next((each for each in sources if self.constant(each) is None), call.args[0])
        return False


def _reshape_broadcast(shape: Shape, old: Shape, new: Shape) -> Shape | None:
    """Return the shape of an operand after the shape it broadcasts to was reshaped.

    Args:
        shape: Shape of the operand; it broadcasts to ``old``.
        old: Shape before.
        new: Shape after, of as many elements.

    Returns:
        The operand's new shape, or None if it would have to be repeated.
    """
    if 0 in old:
        return None
    full = (1,) * (len(old) - len(shape)) + shape
    result: list[int] = []
    i = j = 0
    while i < len(old) or j < len(new):
        first, second = i, j
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while math.prod(old[first:i]) != math.prod(new[second:j]):
            if math.prod(old[first:i]) < math.prod(new[second:j]):
                i += 1
            else:
                j += 1
        part = full[first:i]
        if math.prod(part) == 1:
            result += [1] * (j - second)
        elif part == old[first:i]:
            result += new[second:j]
        else:
            return None
    return tuple(result)
