"""Padding of the output channels of convolutions to whole vectors.

The schedules of MetaSchedule tile perfectly: 1,000 channels are vectorised by 8
at most, half of an AVX-512 register, and no tile of them is a multiple of 16. A
convolution with 1,008 channels whose last 8 are dropped costs 0.8 % more
arithmetic and runs on whole vectors; the slice is fused into what follows.
"""

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tuner.engines.relax.fold import constant_value, rewrite

_LANES = 16
# More padding than this is not worth the vectors it fills.
_MAX_WASTE = 0.02


def pad_channels(module: tvm.IRModule) -> tvm.IRModule:
    """Pad NHWC convolutions of constant OHWI weights whose channels nearly fill whole vectors."""
    return rewrite(module, _Padder(module))


_ELEMENTWISE = {"relax.nn.relu", "relax.clip", "relax.sigmoid", "relax.tanh", "relax.nn.silu"}
_WITH_CONSTANT = {"relax.add", "relax.subtract", "relax.multiply", "relax.divide"}
_POOLING = {"relax.nn.max_pool2d", "relax.nn.avg_pool2d", "relax.nn.adaptive_avg_pool2d"}
_REDUCTIONS = {"relax.mean", "relax.sum", "relax.max", "relax.min"}

Array = np.ndarray[Any, Any]


@mutator
class _Padder(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """Mutator that turns conv2d into a wider conv2d and a slice, and moves the slice down.

    A slice fused into the convolution would be paid for every pixel, and TVM computes some
    schedules of that kernel wrong; behind a global pooling it is a thousand numbers.
    """

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self._wide: set[relax.Var] = set()

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Rewrite one call; calls without padding stay."""
        visited = self.visit_expr_post_order(call)
        if not isinstance(visited, relax.Call):
            return visited
        name = getattr(visited.op, "name", "")
        if name == "relax.nn.conv2d" and _is_plain(visited):
            return self._pad(visited)
        if name in _WITH_CONSTANT or _keeps_channels(visited):
            return self._sink_slice(visited)
        return visited

    def _pad(self, call: relax.Call) -> relax.Expr:
        weight = constant_value(self, call.args[1])
        if weight is None:
            return call
        n_channels = weight.shape[0]
        n_padding = -n_channels % _LANES
        if not 0 < n_padding <= _MAX_WASTE * n_channels:
            return call
        padded = np.pad(weight, [(0, n_padding), (0, 0), (0, 0), (0, 0)])
        wide = self._emit(call, [call.args[0], relax.const(padded, str(padded.dtype))])
        return _slice(wide, n_channels)

    def _sink_slice(self, call: relax.Call) -> relax.Expr:
        """Turn op(slice(wide)) into slice(op(wide))."""
        source: Any = None
        if isinstance(call.args[0], relax.Var):
            source = self.lookup_binding(call.args[0])
        if getattr(getattr(source, "op", None), "name", "") != "relax.strided_slice":
            return call
        wide, n_channels = source.args[0], int(call.args[0].ty.shape[-1])
        if wide not in self._wide:
            return call  # a slice of the model itself
        n_padding = int(wide.ty.shape[-1]) - n_channels
        if _keeps_channels(call):
            return _slice(self._emit(call, [wide, *call.args[1:]]), n_channels)
        constant = constant_value(self, call.args[1])
        if constant is None or constant.ndim == 0 or constant.shape[-1] != n_channels:
            return call
        # Ones, so that a division by the padding stays finite.
        fill = [(0, 0)] * (constant.ndim - 1) + [(0, n_padding)]
        padded = np.pad(constant, fill, constant_values=1)
        wider = self._emit(call, [wide, relax.const(padded, str(padded.dtype))])
        return _slice(wider, n_channels)

    def _emit(self, call: relax.Call, args: list[relax.Expr]) -> relax.Var:
        wide: relax.Var = self.builder_.emit(relax.Call(call.op, args, call.attrs, call.ty_args))
        self._wide.add(wide)
        return wide


def _keeps_channels(call: relax.Call) -> bool:
    """Return True if each output channel depends on the same channel of the first input alone."""
    name = getattr(call.op, "name", "")
    if name in _REDUCTIONS:
        axes = [int(axis) for axis in call.attrs.axis or ()]
        return bool(call.attrs.keepdims) and axes in ([1, 2], [2, 1])
    return name in _ELEMENTWISE or (name in _POOLING and str(call.attrs.layout) == "NHWC")


def _slice(wide: relax.Expr, n_channels: int) -> relax.Expr:
    return relax.op.strided_slice(wide, axes=[3], begin=[0], end=[n_channels])


def _is_plain(call: relax.Call) -> bool:
    attrs = call.attrs
    return (
        str(attrs.data_layout) == "NHWC"
        and str(attrs.kernel_layout) == "OHWI"
        and int(attrs.groups) == 1
    )
