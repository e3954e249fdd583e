"""Sums of half precision in float32.

A product of float16 or bfloat16 numbers that adds in the same type loses most of its digits after
a few hundred terms. Here products, convolutions and reductions compute in float32 and round their
results once; the conversions are part of their kernels.
"""

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.rewrites.visitor import CallVisitor, dtype_of, name_of

HALF = ("float16", "bfloat16")
_WITH_OUTPUT_TYPE = {
    *("matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d"),
    *("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"),
}
_ATTRIBUTES = (
    *("strides", "padding", "output_padding", "dilation", "groups"),
    *("data_layout", "kernel_layout", "out_layout"),
)
_REDUCTIONS = {
    *("mean", "sum", "prod", "variance", "std", "cumsum", "cumprod"),
    *("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d"),
    *("nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d"),
}


def sum_in_float32(module: tvm.IRModule) -> tvm.IRModule:
    """Let products, convolutions and reductions of half precision add in float32."""
    return _Widener(module).run(module)


@mutator
class _Widener(CallVisitor):
    """Mutator that widens sums and narrows their results."""

    def rewrite(self, _original: relax.Call, call: relax.Call) -> relax.Expr:
        """Widen one call."""
        name = name_of(call)
        if name not in _WITH_OUTPUT_TYPE | _REDUCTIONS or not _is_half(call):
            return call
        dtype, args = dtype_of(call), list(call.args)
        if name in _REDUCTIONS:
            args[0] = self.emit(relax.op.astype(args[0], "float32"))
            wide = relax.Call(call.op, args, call.attrs, call.ty_args)
        else:
            wide = self._with_output_type(name, call)
        return relax.op.astype(self.emit(wide), dtype)

    def _with_output_type(self, name: str, call: relax.Call) -> relax.Expr:
        if name == "matmul":
            return relax.op.matmul(*call.args, out_dtype="float32")
        operator = getattr(relax.op.nn, name.removeprefix("nn."))
        attrs = {key: getattr(call.attrs, key) for key in _ATTRIBUTES if hasattr(call.attrs, key)}
        return operator(*call.args, **attrs, out_dtype="float32")


def _is_half(call: relax.Call) -> bool:
    is_tensor = isinstance(call.ty, relax.TensorType)
    return is_tensor and dtype_of(call) in HALF and dtype_of(call.args[0]) in HALF
