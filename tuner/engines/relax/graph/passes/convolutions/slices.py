"""Slices and padding as kernels of their own, which TVM does not fuse into a convolution before.

TVM takes a slice from 0 on, and padding behind the end alone, for an elementwise operator: its
indices are those of what it reads. Fused into a convolution, half of the schedules of a slice
compute a wrong result, and no schedule by rule fits padding.
"""

from typing import Any

import tvm
from tvm import relax, topi

# TVM's pattern of kernels that move elements: they are fused with others before or behind them.
_INJECTIVE = 2


def legalise_slice(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Replace ``relax.strided_slice`` by a kernel that only other movements are fused with."""
    data, *bounds = call.args
    numbers = [_numbers(each) for each in bounds]
    if any(each is None for each in numbers):
        return call.op.get_attr("FLegalize")(builder, call)
    axes, begin, end, strides = [*numbers, [1] * len(numbers[0] or ())][:4]
    return builder.call_te(
        lambda x: topi.strided_slice(
            x, begin, end, strides, axes, "end", call.attrs.assume_inbound
        ),
        data,
        primfunc_name_hint="strided_slice",
        primfunc_attrs={"op_pattern": _INJECTIVE},
    )


def legalise_pad(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Replace ``relax.nn.pad`` likewise."""
    attrs = call.attrs
    if str(attrs.pad_mode) != "constant":
        return call.op.get_attr("FLegalize")(builder, call)
    widths = [int(n) for n in attrs.pad_width]
    return builder.call_te(
        lambda x: topi.nn.pad(x, widths[::2], widths[1::2], attrs.pad_value),
        call.args[0],
        primfunc_name_hint="pad",
        primfunc_attrs={"op_pattern": _INJECTIVE},
    )


def _numbers(expr: Any) -> list[int] | None:
    fields = expr.fields if isinstance(expr, relax.Tuple) else ()
    if not fields or not all(isinstance(field, tvm.tirx.IntImm) for field in fields):
        return None
    return [int(field) for field in fields]
