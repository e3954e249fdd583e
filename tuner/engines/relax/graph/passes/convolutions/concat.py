"""Removal of concatenations between convolutions.

A concatenation copies all of its inputs, 8 % of SqueezeNet's time here. The
convolution of a concatenation is the sum of the convolutions of its parts, and
where the convolution narrows the channels, that sum is over tensors much
smaller than what would have been copied. Pooling treats channels apart, so a
concatenation moves behind it.
"""

from collections import Counter
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tuner.engines.relax.graph.fold import constant_value, rewrite
from tuner.engines.relax.graph.passes.convolutions.affine import count_uses

_CHANNELS = 3
_POOLS = {"relax.nn.max_pool2d", "relax.nn.avg_pool2d"}
_MAX_PARTS = 4
# Smallest ratio of input to output channels that is worth a split.
_NARROWING = 2

Array = np.ndarray[Any, Any]


def split_concatenations(module: tvm.IRModule) -> tvm.IRModule:
    """Replace conv2d(concat(a, b)) by conv2d(a) + conv2d(b), in NHWC with constant weights."""
    splitter = _Splitter(module)
    return rewrite(module, splitter, splitter.prepare)


@mutator
class _Splitter(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """Mutator that moves concatenations behind pools and dissolves them in convolutions."""

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self.n_uses: Counter[relax.Var] = Counter()
        # The two terms of every sum made by this mutator, by the variable that holds it.
        self._sums: dict[relax.Var, tuple[relax.Var, relax.Var]] = {}

    def prepare(self, function: relax.Function) -> None:
        """Count the uses of the variables of a function."""
        self.n_uses = count_uses(function)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Rewrite one call; everything else stays."""
        visited = self.visit_expr_post_order(call)
        if not isinstance(visited, relax.Call) or not isinstance(call.args[0], relax.Var):
            return visited
        name = getattr(visited.op, "name", "")
        if name == "relax.add":
            return self._add_bias(visited)
        if name not in _POOLS | {"relax.nn.conv2d"} or self.n_uses[call.args[0]] != 1:
            return visited
        parts = self._parts(visited.args[0])
        if parts is None or str(visited.attrs.layout if name in _POOLS else _layouts(visited)) != (
            "NHWC" if name in _POOLS else "NHWC OHWI 1"
        ):
            return visited
        if name in _POOLS:
            return relax.op.concat([self._emit(visited, [part]) for part in parts], _CHANNELS)
        return self._split(visited, parts)

    def _split(self, call: relax.Call, parts: list[relax.Expr]) -> relax.Expr:
        weight = constant_value(self, call.args[1])
        if weight is None or weight.shape[0] * _NARROWING > weight.shape[_CHANNELS]:
            return call
        bounds = np.cumsum([int(part.ty.shape[_CHANNELS]) for part in parts])[:-1]
        pieces = [np.ascontiguousarray(p) for p in np.split(weight, bounds, axis=_CHANNELS)]
        total: relax.Var | None = None
        for part, piece in zip(parts, pieces, strict=True):
            product = self._emit(call, [part, relax.const(piece, str(piece.dtype))])
            total = product if total is None else self._sum(product, total)
        return total

    def _sum(self, product: relax.Var, total: relax.Var) -> relax.Var:
        added: relax.Var = self.builder_.emit(relax.op.add(product, total))
        self._sums[added] = (product, total)
        return added

    def _add_bias(self, call: relax.Call) -> relax.Expr:
        """Add a bias to the last convolution before the other terms.

        TVM fuses conv + bias + residual + activation, but stops after conv + residual.
        """
        held = call.args[0]
        while isinstance(held, relax.Var) and held not in self._sums:
            held = self.lookup_binding(held)
        if not isinstance(held, relax.Var) or constant_value(self, call.args[1]) is None:
            return call
        product, total = self._sums[held]
        return self._sum(self.builder_.emit(relax.op.add(product, call.args[1])), total)

    def _parts(self, expr: relax.Expr) -> list[relax.Expr] | None:
        """Return the inputs of the channel concatenation that a variable holds, or None."""
        bound = self.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        if getattr(getattr(bound, "op", None), "name", "") != "relax.concat":
            return None
        fields = self._fields(bound)
        axis = int(bound.attrs.axis) if bound is not None else 0
        if fields is None or axis not in (_CHANNELS, -1) or len(fields) > _MAX_PARTS:
            return None
        return fields

    def _fields(self, concat: Any) -> list[relax.Expr] | None:
        tensors = concat.args[0]
        if isinstance(tensors, relax.Var):
            tensors = self.lookup_binding(tensors)
        return list(tensors.fields) if isinstance(tensors, relax.Tuple) else None

    def _emit(self, call: relax.Call, args: list[relax.Expr]) -> relax.Var:
        return self.builder_.emit(relax.Call(call.op, args, call.attrs, call.ty_args))


def _layouts(conv: relax.Call) -> str:
    attrs = conv.attrs
    return f"{attrs.data_layout} {attrs.kernel_layout} {int(attrs.groups)}"
