"""Recognition of normalisations that a model spells as arithmetic.

Exporters write a layer norm as mean, subtract, power, mean, add, square root, divide, multiply and
add. Fused by rule these are three kernels or more, and some compute the mean once an element. As
one operator they are one kernel, and layouts can be assigned to them.
"""

from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.passes.visitor import Array, CallVisitor, const, dtype_of, name_of
from tuner.engines.relax.ir.tensor_types import shape_of

_MIN_SPATIAL = 3
# Half precision is that of GPUs: CPUs compute in float32.
_FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class _Norm:
    """A normalisation whose scale and shift are known.

    Attributes:
        data: Value before it.
        axes: Axes of mean and variance.
        epsilon: Summand of the variance.
        is_centred: False for a root mean square without subtraction of the mean.
        n_groups: Groups of channels of a group norm; 0 for others.
        scale: Factor of the result, broadcast to it; None for 1.
        shift: Summand of the result, broadcast to it; None for 0.
    """

    data: relax.Expr
    axes: tuple[int, ...]
    epsilon: float
    is_centred: bool
    n_groups: int = 0
    scale: Array | None = None
    shift: Array | None = None


@mutator
class NormalisationFinder(CallVisitor):
    """Mutator that grows a norm (layer, group, instance, RMS) from its division to its last sum."""

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self._norms: dict[relax.Var, _Norm] = {}

    def rewrite(self, original: relax.Call, call: relax.Call) -> relax.Expr:
        """Replace one call that ends a normalisation."""
        norm = self._match(original, call)
        result = None if norm is None else self._expressed(norm)
        if norm is None or result is None:
            return call
        variable = self.emit(result)
        if shape_of(variable) != shape_of(call):
            variable = self.emit(relax.op.reshape(variable, shape_of(call)))
        self._norms[variable] = norm
        return variable

    def _expressed(self, norm: _Norm) -> relax.Expr | None:
        """Return the operator of a normalisation: TVM has none of bfloat16."""
        if dtype_of(norm.data) != "bfloat16":
            return _express(norm)
        wide = replace(norm, data=self.emit(relax.op.astype(norm.data, "float32")))
        result = _express(wide)
        return None if result is None else relax.op.astype(self.emit(result), "bfloat16")

    def _match(self, original: relax.Call, call: relax.Call) -> _Norm | None:
        name = name_of(call)
        if name == "nn.group_norm":
            return self._group_norm(call)
        if name in ("divide", "multiply"):
            norm = self._core(call)
            if norm is not None:
                return norm
        if name in ("add", "multiply"):
            return self._affine(original, call)
        return self._grouped(call) if name == "reshape" else None

    def _group_norm(self, call: relax.Call) -> _Norm | None:
        """Read an operator, whose scale and shift may follow it."""
        attrs, rank = call.attrs, len(call.ty.shape)
        scale, shift = (self.constant(arg) for arg in call.args[1:])
        if scale is None or shift is None or int(attrs.channel_axis) != 1:
            return None
        per_channel = (-1, *[1] * (rank - 2))
        bare = _Norm(
            call.args[0],
            tuple(int(axis) for axis in attrs.axes),
            float(attrs.epsilon),
            is_centred=True,
            n_groups=int(attrs.num_groups),
        )
        return _with(bare, scale.reshape(per_channel), shift.reshape(per_channel))

    def _core(self, call: relax.Call) -> _Norm | None:
        """Match centred / sqrt(variance + epsilon) in its spellings."""
        for centred, factor in self._operands(call):
            variance = self._under_root(factor, is_inverse=name_of(call) == "multiply")
            if variance is None:
                continue
            for summed, small in self._operands(variance):
                epsilon = self.scalar(small)
                moment = None if epsilon is None else self._moment(summed)
                if epsilon is None or moment is None:
                    continue
                value, axes, data = moment
                if data is not None and self._is_centred(centred, data, axes):
                    return _Norm(data, axes, epsilon, is_centred=True)
                if data is None and self.is_same(value, centred):
                    source = self._centre(centred, axes)
                    if source is not None:
                        return _Norm(source, axes, epsilon, is_centred=True)
                    return _Norm(centred, axes, epsilon, is_centred=False)
        return None

    def _operands(self, call: relax.Call) -> list[tuple[relax.Expr, relax.Expr]]:
        left, right = call.args
        both = [(left, right), (right, left)]
        return both[:1] if name_of(call) == "divide" else both

    def _under_root(self, expr: relax.Expr, *, is_inverse: bool) -> relax.Call | None:
        """Return the sum under a square root, which is inverted for a product."""
        call = self.producer(expr)
        if call is None:
            return None
        name = name_of(call)
        if is_inverse:
            if name == "divide" and self.scalar(call.args[0]) == 1.0:
                return self._under_root(call.args[1], is_inverse=False)
            is_root = name == "rsqrt" or (name == "power" and self.scalar(call.args[1]) == -0.5)
        else:
            is_root = name == "sqrt" or (name == "power" and self.scalar(call.args[1]) == 0.5)
        return self.producer(call.args[0], "relax.add") if is_root else None

    def _moment(
        self, expr: relax.Expr
    ) -> tuple[relax.Expr, tuple[int, ...], relax.Expr | None] | None:
        """Match the mean of a square, or a variance: what is squared, axes, data of a variance."""
        call = self.producer(expr, "relax.mean", "relax.variance")
        if call is None or not call.attrs.keepdims:
            return None
        rank = len(call.args[0].ty.shape)
        axes = tuple(sorted(int(axis) % rank for axis in call.attrs.axis or range(rank)))
        if name_of(call) == "variance":
            return call.args[0], axes, call.args[0]
        squared = self._squared(call.args[0])
        return None if squared is None else (squared, axes, None)

    def _squared(self, expr: relax.Expr) -> relax.Expr | None:
        call = self.producer(expr)
        if call is None:
            return None
        name = name_of(call)
        is_square = (
            name == "square"
            or (name == "power" and self.scalar(call.args[1]) == 2.0)
            or (name == "multiply" and self.is_same(*call.args))
        )
        return call.args[0] if is_square else None

    def _centre(self, expr: relax.Expr, axes: tuple[int, ...]) -> relax.Expr | None:
        """Return x of x - mean(x)."""
        call = self.producer(expr, "relax.subtract")
        if call is None:
            return None
        data = call.args[0]
        return data if self._is_centred(expr, data, axes) else None

    def _is_centred(self, expr: relax.Expr, data: relax.Expr, axes: tuple[int, ...]) -> bool:
        call = self.producer(expr, "relax.subtract")
        mean = None if call is None else self.producer(call.args[1], "relax.mean")
        if call is None or mean is None or not mean.attrs.keepdims:
            return False
        rank = len(data.ty.shape)
        centre = tuple(sorted(int(axis) % rank for axis in mean.attrs.axis or range(rank)))
        is_mean = centre == axes and self.is_same(mean.args[0], data)
        return is_mean and self.is_same(call.args[0], data)

    def _affine(self, original: relax.Call, call: relax.Call) -> _Norm | None:
        """Absorb a constant factor or summand."""
        for index, (expr, other) in enumerate(self._operands(call)):
            norm = self._known(expr)
            value = None if norm is None else self.constant(other)
            operand = original.args[index]
            if norm is None or value is None or self.n_uses[operand] != 1:
                continue
            if shape_of(call) != shape_of(expr) or dtype_of(call) not in _FLOATS:
                continue
            if name_of(call) == "add":
                shift = value if norm.shift is None else norm.shift + value
                return _with(norm, norm.scale, shift)
            scale = value if norm.scale is None else norm.scale * value
            return _with(norm, scale, None if norm.shift is None else norm.shift * value)
        return None

    def _grouped(self, call: relax.Call) -> _Norm | None:
        """Match a norm of (batch, groups, rest) between two reshapes."""
        norm = self._known(call.args[0])
        if norm is None or norm.scale is not None or norm.shift is not None:
            return None
        source = self.producer(norm.data, "relax.reshape")
        shape = shape_of(call)
        if source is None or shape_of(source.args[0]) != shape or not norm.is_centred:
            return None
        grouped = shape_of(norm.data)
        is_grouped = norm.axes == tuple(range(2, len(grouped))) and grouped[0] == shape[0]
        if len(shape) < _MIN_SPATIAL or not is_grouped or shape[1] % grouped[1]:
            return None
        axes = tuple(range(2, len(shape)))
        return _Norm(source.args[0], axes, norm.epsilon, is_centred=True, n_groups=grouped[1])

    def _known(self, expr: relax.Expr) -> _Norm | None:
        """Return the normalisation that a variable holds."""
        while isinstance(expr, relax.Var) and expr not in self._norms:
            expr = self.lookup_binding(expr)
        return self._norms.get(expr) if isinstance(expr, relax.Var) else None


def _with(norm: _Norm, scale: Array | None, shift: Array | None) -> _Norm:
    scale = None if scale is None or (scale == 1.0).all() else scale
    shift = None if shift is None or (shift == 0.0).all() else shift
    return _Norm(norm.data, norm.axes, norm.epsilon, norm.is_centred, norm.n_groups, scale, shift)


def _express(norm: _Norm) -> relax.Expr | None:
    """Return the operator of a normalisation; None if there is none for its axes or constants."""
    dtype, shape = dtype_of(norm.data), shape_of(norm.data)
    if dtype not in _FLOATS:
        return None
    axes = list(norm.axes)
    expressed = None
    if norm.is_centred and len(shape) >= _MIN_SPATIAL and axes == list(range(2, len(shape))):
        expressed = _express_channels(norm, axes)
    # Over the last axis alone, which layouts keep, it may be the norm of a token.
    is_image = expressed is not None and len(axes) > 1
    is_trailing = axes == list(range(len(shape) - len(axes), len(shape)))
    if is_trailing and not norm.n_groups and not is_image:
        trailing = _express_trailing(norm, shape)
        return expressed if trailing is None else trailing
    if axes == [1] and not norm.n_groups:
        # At each position over the channels: neither transpose remains where these are last anyway.
        rank = len(shape)
        moved = relax.op.permute_dims(norm.data, [0, *range(2, rank), 1])
        normalised = _express_trailing(norm, shape, moved)
        if normalised is None:
            return None
        return relax.op.permute_dims(normalised, [0, rank - 1, *range(1, rank - 1)])
    return expressed


def _express_channels(norm: _Norm, axes: list[int]) -> relax.Expr | None:
    """Return a norm of groups of channels, or of each channel, which layouts can be assigned to."""
    scale, shift = (_along(norm, value, [1], fill) for value, fill in _constants(norm))
    if scale is None or shift is None:
        return None
    if norm.n_groups:
        return relax.op.nn.group_norm(norm.data, scale, shift, norm.n_groups, 1, axes, norm.epsilon)
    return relax.op.nn.instance_norm(norm.data, scale, shift, 1, axes, norm.epsilon)


def _express_trailing(
    norm: _Norm, shape: tuple[int, ...], data: relax.Expr | None = None
) -> relax.Expr | None:
    """Return a layer norm or, without subtraction of the mean, the norm of a root mean square.

    Args:
        norm: Norm over some axes.
        shape: Shape of its data.
        data: The data with these axes last; None if they are last already.
    """
    axes = list(norm.axes)
    scale, shift = (_along(norm, value, axes, fill) for value, fill in _constants(norm))
    if scale is None or shift is None:
        return None
    data = norm.data if data is None else data
    behind = list(range(len(shape) - len(axes), len(shape)))
    if norm.is_centred:
        return relax.op.nn.layer_norm(data, scale, shift, behind, norm.epsilon)
    # TVM takes none over all axes.
    if norm.shift is None and len(axes) < len(shape):
        return relax.op.nn.rms_norm(data, scale, behind, norm.epsilon)
    return None


def _constants(norm: _Norm) -> tuple[tuple[Array | None, float], tuple[Array | None, float]]:
    return (norm.scale, 1.0), (norm.shift, 0.0)


def _along(norm: _Norm, value: Array | None, axes: list[int], fill: float) -> relax.Expr | None:
    """Return a constant over some axes alone; None if it varies along others."""
    shape, dtype = shape_of(norm.data), dtype_of(norm.data)
    sizes = [shape[axis] for axis in axes]
    if value is None:
        return const(np.full(sizes, fill), dtype)
    if value.ndim > len(shape):
        return None
    full = value.reshape((1,) * (len(shape) - value.ndim) + value.shape)
    if any(size != 1 for axis, size in enumerate(full.shape) if axis not in axes):
        return None
    return const(np.broadcast_to(full.reshape([full.shape[a] for a in axes]), sizes), dtype)
