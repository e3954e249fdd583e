"""Removal of concatenations between convolutions.

A concatenation copies all of its inputs, 8 % of SqueezeNet's time here. The
convolution of a concatenation is the sum of the convolutions of its parts, and
where the convolution narrows the channels, that sum is over tensors much
smaller than what would have been copied. Pooling treats channels apart, so a
concatenation moves behind it.
"""

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.passes.visitor import CallVisitor, name_of

_CHANNELS = 3
_POOLS = {"nn.max_pool2d", "nn.avg_pool2d"}
_MAX_PARTS = 4
# Smallest ratio of input to output channels that is worth a split.
_NARROWING = 2


@mutator
class ConcatenationSplitter(CallVisitor):
    """Mutator that replaces conv2d(concat(a, b)) by conv2d(a) + conv2d(b).

    In NHWC with constant weights; it moves concatenations behind pools.
    """

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        # The two terms of every sum made by this mutator, by the variable that holds it.
        self._sums: dict[relax.Var, tuple[relax.Var, relax.Var]] = {}

    def rewrite(self, original: relax.Call, call: relax.Call) -> relax.Expr:
        """Rewrite one call; everything else stays."""
        name = name_of(call)
        if name == "add":
            return self._add_bias(call)
        is_pool = name in _POOLS
        if not (is_pool or name == "nn.conv2d") or self.n_uses[original.args[0]] != 1:
            return call
        parts, attrs = self._parts(call.args[0]), call.attrs
        layout = (
            (attrs.layout,)
            if is_pool
            else (attrs.data_layout, attrs.kernel_layout, int(attrs.groups))
        )
        if parts is None or layout != (("NHWC",) if is_pool else ("NHWC", "OHWI", 1)):
            return call
        if is_pool:
            return relax.op.concat([self._with(call, [part]) for part in parts], _CHANNELS)
        return self._split(call, parts)

    def _split(self, call: relax.Call, parts: list[relax.Expr]) -> relax.Expr:
        weight = self.constant(call.args[1])
        if weight is None or weight.shape[0] * _NARROWING > weight.shape[_CHANNELS]:
            return call
        bounds = np.cumsum([int(part.ty.shape[_CHANNELS]) for part in parts])[:-1]
        pieces = [np.ascontiguousarray(p) for p in np.split(weight, bounds, axis=_CHANNELS)]
        total: relax.Var | None = None
        for part, piece in zip(parts, pieces, strict=True):
            product = self._with(call, [part, relax.const(piece, str(piece.dtype))])
            total = product if total is None else self._sum(product, total)
        return total

    def _sum(self, product: relax.Var, total: relax.Var) -> relax.Var:
        added = self.emit(relax.op.add(product, total))
        self._sums[added] = (product, total)
        return added

    def _add_bias(self, call: relax.Call) -> relax.Expr:
        """Add a bias to the last convolution before the other terms.

        TVM fuses conv + bias + residual + activation, but stops after conv + residual.
        """
        held = call.args[0]
        while isinstance(held, relax.Var) and held not in self._sums:
            held = self.lookup_binding(held)
        if not isinstance(held, relax.Var) or self.constant(call.args[1]) is None:
            return call
        product, total = self._sums[held]
        return self._sum(self.emit(relax.op.add(product, call.args[1])), total)

    def _parts(self, expr: relax.Expr) -> list[relax.Expr] | None:
        """Return the inputs of the channel concatenation that a variable holds, or None."""
        concat = self.producer(expr, "relax.concat")
        if concat is None or int(concat.attrs.axis) not in (_CHANNELS, -1):
            return None
        tensors = concat.args[0]
        if isinstance(tensors, relax.Var):
            tensors = self.lookup_binding(tensors)
        is_few = isinstance(tensors, relax.Tuple) and len(tensors.fields) <= _MAX_PARTS
        return list(tensors.fields) if is_few else None

    def _with(self, call: relax.Call, args: list[relax.Expr]) -> relax.Var:
        return self.emit(relax.Call(call.op, args, call.attrs, call.ty_args))
