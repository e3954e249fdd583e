"""Fold scales and shifts behind a convolution into its weights and bias.

TVM folds a batch norm into the convolution right before it; exported torch
programs have the bias in between, and what is left of the norm is a chain of
subtract, divide, multiply and add with constants per channel.
"""

import ml_dtypes
import numpy as np
from tvm import relax
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.passes.visitor import (
    Array,
    CallVisitor,
    const,
    dtype_of,
    name_of,
)

_OPS = {"add", "subtract", "multiply", "divide"}
_CONVOLUTIONS = {"nn.conv1d", "nn.conv2d", "nn.conv3d"}


@mutator
class AffineFolder(CallVisitor):
    """Mutator that rewrites op(conv(x, w) + b, constant) to conv(x, w') + b', channels first."""

    def rewrite(self, original: relax.Call, call: relax.Call) -> relax.Expr:
        """Fold one operator; everything else stays."""
        if name_of(call) not in _OPS or self.n_uses[original.args[0]] != 1:
            return call
        constant, source = self.constant(call.args[1]), self.producer(call.args[0])
        if constant is None or source is None:
            return call
        conv, bias = self._split(source)
        weight = None if conv is None else self.constant(conv.args[1])
        if conv is None or weight is None:
            return call
        if not _is_per_channel(constant, weight.shape[0], weight.ndim):
            return call
        dtypes = {str(array.dtype) for array in (weight, constant)} | {dtype_of(conv)}
        if dtypes not in ({"float32"}, {"float16"}, {"bfloat16"}, {"float64"}):
            return call
        return self._fold(call, conv, weight, bias, constant.reshape(-1))

    def _split(self, source: relax.Call) -> tuple[relax.Call | None, Array | None]:
        """Split conv(x, w) + b into its parts; a missing bias is None."""
        if name_of(source) in _CONVOLUTIONS:
            return source, None
        if name_of(source) != "add":
            return None, None
        bias, conv = self.constant(source.args[1]), self.producer(source.args[0])
        if bias is None or conv is None or name_of(conv) not in _CONVOLUTIONS:
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
        op = name_of(call)
        shift = np.zeros(weight.shape[0]) if bias is None else bias.astype(np.float64)
        constant = constant.astype(np.float64)
        if op in ("add", "subtract"):
            shift = shift + constant if op == "add" else shift - constant
            scaled, has_shift = weight, True
        else:
            with np.errstate(divide="ignore"):
                scale = constant if op == "multiply" else 1 / constant
            scaled = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
            shift, has_shift = shift * scale, bias is not None
        limit = float(ml_dtypes.finfo(weight.dtype).max)  # type: ignore[no-untyped-call]
        if not all((np.abs(value) <= limit).all() for value in (scaled, shift)):
            return call  # NaN and infinity are results of the network
        folded = relax.Call(
            conv.op, [conv.args[0], const(scaled, str(weight.dtype))], conv.attrs, conv.ty_args
        )
        if not has_shift:
            return folded
        per_channel = shift.reshape(1, -1, *[1] * (weight.ndim - 2))
        return relax.op.add(self.emit(folded), const(per_channel, str(weight.dtype)))


def _is_per_channel(constant: Array, n_channels: int, rank: int) -> bool:
    """Return True if a constant broadcasts along axis 1, and no other, of a tensor of a rank."""
    shape = (1,) * (rank - constant.ndim) + constant.shape
    return len(shape) == rank and constant.size == n_channels and shape[1] == n_channels
