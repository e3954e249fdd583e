"""Fold scales and shifts behind a convolution into its weights and bias.

TVM folds a batch norm into the convolution right before it; exported torch
programs have the bias in between, and what is left of the norm is a chain of
subtract, divide, multiply and add with constants per channel.
"""

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tuner.engines.relax.graph.fold import constant_value, rewrite

Array = np.ndarray[Any, Any]

_OPS = {"relax.add", "relax.subtract", "relax.multiply", "relax.divide"}
_CONVOLUTIONS = {"relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d"}


def fold_affine(module: tvm.IRModule) -> tvm.IRModule:
    """Fold per-channel arithmetic of channels-first convolutions with constant weights."""
    folder = _AffineFolder(module)
    return rewrite(module, folder, folder.prepare)


def count_uses(function: relax.Function) -> Counter[relax.Var]:
    """Count how often each variable of a function is used as an operand or result."""
    uses: Counter[relax.Var] = Counter()

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call):
            uses.update(arg for arg in expr.args if isinstance(arg, relax.Var))
        elif isinstance(expr, (relax.Tuple, relax.SeqExpr)):
            fields = expr.fields if isinstance(expr, relax.Tuple) else [expr.body]
            uses.update(field for field in fields if isinstance(field, relax.Var))

    relax.analysis.post_order_visit(function, visit)
    return uses


@mutator
class _AffineFolder(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """Mutator that rewrites op(conv(x, w) + b, constant) to conv(x, w') + b'."""

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self.n_uses: Counter[relax.Var] = Counter()

    def prepare(self, function: relax.Function) -> None:
        """Count the uses of the variables of a function."""
        self.n_uses = count_uses(function)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Fold one operator; everything else stays."""
        visited = self.visit_expr_post_order(call)
        is_ours = isinstance(visited, relax.Call) and getattr(visited.op, "name", "") in _OPS
        if not is_ours or self.n_uses[call.args[0]] != 1:
            return visited
        constant = constant_value(self, visited.args[1])
        source = self._binding(visited.args[0])
        if constant is None or source is None:
            return visited
        conv, bias = self._split(source)
        weight = None if conv is None else constant_value(self, conv.args[1])
        if conv is None or weight is None:
            return visited
        if not _is_per_channel(constant, weight.shape[0], weight.ndim):
            return visited
        dtypes = {str(array.dtype) for array in (weight, constant)} | {str(conv.ty.dtype)}
        if dtypes not in ({"float32"}, {"float16"}, {"bfloat16"}, {"float64"}):
            return visited
        return self._fold(visited, conv, weight, bias, constant.reshape(-1))

    def _split(self, source: relax.Call) -> tuple[relax.Call | None, Array | None]:
        """Split conv(x, w) + b into its parts; a missing bias is None."""
        if source.op.name in _CONVOLUTIONS:
            return source, None
        if source.op.name != "relax.add":
            return None, None
        bias, conv = constant_value(self, source.args[1]), self._binding(source.args[0])
        if bias is None or conv is None or conv.op.name not in _CONVOLUTIONS:
            return None, None
        rank, n_channels = len(conv.ty.shape), int(conv.ty.shape[1])
        if not _is_per_channel(bias, n_channels, rank):
            return None, None
        return conv, bias.reshape(-1)

    def _fold(
        self,
        call: relax.Call,
        conv: relax.Call,
        weight: Array,
        bias: Array | None,
        constant: Array,
    ) -> relax.Expr:
        op = call.op.name
        shift = np.zeros(weight.shape[0]) if bias is None else bias.astype(np.float64)
        constant = constant.astype(np.float64)
        if op in ("relax.add", "relax.subtract"):
            shift = shift + constant if op == "relax.add" else shift - constant
            scaled, has_shift = weight, True
        else:
            with np.errstate(divide="ignore"):
                scale = constant if op == "relax.multiply" else 1 / constant
            scaled = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
            shift, has_shift = shift * scale, bias is not None
        limit = float(ml_dtypes.finfo(weight.dtype).max)  # type: ignore[no-untyped-call]
        if not all((np.abs(value) <= limit).all() for value in (scaled, shift)):
            return call  # NaN and infinity are results of the network
        folded = relax.Call(
            conv.op, [conv.args[0], _const(scaled, weight)], conv.attrs, conv.ty_args
        )
        if not has_shift:
            return folded
        per_channel = shift.reshape(1, -1, *[1] * (weight.ndim - 2))
        return relax.op.add(self.builder_.emit(folded), _const(per_channel, weight))

    def _binding(self, expr: relax.Expr) -> relax.Call | None:
        bound = self.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        return bound if isinstance(bound, relax.Call) and hasattr(bound.op, "name") else None


def _is_per_channel(constant: Array, n_channels: int, rank: int) -> bool:
    """Return True if a constant broadcasts along axis 1, and no other, of a tensor of a rank."""
    shape = (1,) * (rank - constant.ndim) + constant.shape
    return len(shape) == rank and constant.size == n_channels and shape[1] == n_channels


def _const(value: Array, like: Array) -> relax.Expr:
    return relax.const(np.ascontiguousarray(value, dtype=like.dtype), str(like.dtype))
