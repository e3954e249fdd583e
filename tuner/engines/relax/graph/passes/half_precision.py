"""Networks in half precision, computed in float32 on CPUs.

A product of float16 or bfloat16 numbers that adds in the same type loses most of its digits after
a few hundred terms, and CPUs convert each operand of each product. In float32 every number is
converted once, and all rewrites and schedules apply that know no other type.
"""

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.layout.scope import with_attrs
from tuner.engines.relax.graph.passes.visitor import CallVisitor, dtype_of, name_of

_HALF = ("float16", "bfloat16")
_WIDE = "float32"
_DTYPES = ("dtype", "out_dtype")
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
# TVM defines these for other floats.
_WITHOUT_BFLOAT16 = {
    *("nn.layer_norm", "nn.instance_norm", "power", "isnan", "isinf", "isfinite"),
    *("floor_divide", "floor_mod", "not_equal", "argmax", "argmin"),
}
# Calls of code whose types are fixed.
_OPAQUE = {"", "call_tir", "call_dps_packed", "call_pure_packed", "memory.view"}


def compute_in_float32(module: tvm.IRModule) -> tvm.IRModule:
    """Convert inputs and constants of half precision to float32, and the outputs back."""
    if not any(_has_half(each.var) for each in _bindings(module["main"])):
        return module
    module = relax.transform.CanonicalizeBindings()(module)
    main = module["main"]
    bindings = _bindings(main)
    if any(
        not isinstance(each, relax.VarBinding) or isinstance(each.value, (relax.If, relax.SeqExpr))
        for each in bindings
    ):
        return module
    builder = relax.BlockBuilder()
    widener = _WholeWidener(builder)
    with builder.function("main", list(main.params)):
        with builder.dataflow():
            for variable in main.params:
                widener.bind(variable, variable)
            for binding in bindings:
                widener.bind(binding.var, widener.widened(binding.value))
            result = builder.emit_output(widener.narrowed(main.body.body))
        builder.emit_func_output(result)
    functions = dict(module.functions_items())
    function = builder.get()["main"].with_attrs(dict(main.attrs or {}))
    functions[module.get_global_var("main")] = function
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


class _WholeWidener:
    """Values of a function in float32, by the variables that held them in half precision."""

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self._builder = builder
        self._values: dict[relax.Expr, relax.Expr] = {}
        self._halves: dict[relax.Var, relax.Var] = {}

    def bind(self, variable: relax.Var, value: relax.Expr) -> None:
        """Emit the value of a variable, and convert it if it is of half precision still."""
        emitted = value if isinstance(value, relax.Var) else self._builder.emit(value)
        if _is_half(emitted):
            self._halves[variable] = emitted
            emitted = self._builder.emit(relax.op.astype(emitted, _WIDE))
        self._values[variable] = emitted

    def widened(self, value: relax.Expr) -> relax.Expr:
        """Return a value that is computed from values in float32."""
        if not isinstance(value, relax.Call):
            return self._operand(value)
        if name_of(value) in _OPAQUE:
            args = [self.narrowed(arg) for arg in value.args]
            return relax.Call(value.op, args, value.attrs, value.ty_args)
        args = [self._operand(arg) for arg in value.args]
        changes: dict[str, Any] = {
            name: _WIDE for name in _DTYPES if str(getattr(value.attrs, name, "")) in _HALF
        }
        if name_of(value) == "astype" and changes and dtype_of(args[0]) == _WIDE:
            return args[0]
        return with_attrs(value, args, **changes)

    def narrowed(self, expr: relax.Expr) -> relax.Expr:
        """Return a value in the type that it had."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.narrowed(field) for field in expr.fields])
        if expr in self._halves or not isinstance(expr, relax.Var):
            return self._halves.get(expr, expr)
        return self._cast(self._values[expr], expr.ty)

    def _cast(self, value: relax.Expr, kind: Any) -> relax.Expr:
        if isinstance(kind, relax.TupleType):
            fields = [
                self._cast(self._builder.emit(relax.TupleGetItem(value, index)), field)
                for index, field in enumerate(kind.fields)
            ]
            return relax.Tuple(fields)
        if not isinstance(kind, relax.TensorType) or dtype_of(value) == str(kind.dtype):
            return value
        return self._builder.emit(relax.op.astype(value, str(kind.dtype)))

    def _operand(self, expr: relax.Expr) -> relax.Expr:
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._operand(field) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._operand(expr.tuple_value), expr.index)
        if isinstance(expr, GenericConst) and _is_half(expr) and expr not in self._values:
            wide = np.asarray(expr.value.numpy(), _WIDE, order="C")
            self._values[expr] = relax.const(wide, _WIDE)
        return self._values.get(expr, expr)


@mutator
class SumWidener(CallVisitor):
    """Mutator of products, convolutions and reductions in half precision, which adds in float32.

    On CPUs they are in branches that the data choose, which :func:`compute_in_float32` leaves.
    """

    def rewrite(self, _original: relax.Call, call: relax.Call) -> relax.Expr:
        """Widen one call."""
        name = name_of(call)
        if name in _WITHOUT_BFLOAT16 and dtype_of(call.args[0]) == "bfloat16":
            args = [self.emit(relax.op.astype(arg, _WIDE)) for arg in call.args]
            wide = relax.Call(call.op, args, call.attrs, call.ty_args)
            return relax.op.astype(self.emit(wide), dtype_of(call)) if _is_half(call) else wide
        if name not in _WITH_OUTPUT_TYPE | _REDUCTIONS:
            return call
        if not (_is_half(call) and _is_half(call.args[0])):
            return call
        dtype, args = dtype_of(call), list(call.args)
        if name in _REDUCTIONS:
            args[0] = self.emit(relax.op.astype(args[0], "float32"))
            wide = relax.Call(call.op, args, call.attrs, call.ty_args)
        elif name == "matmul":
            wide = relax.op.matmul(*call.args, out_dtype="float32")
        else:
            operator, own = getattr(relax.op.nn, name.removeprefix("nn.")), call.attrs
            attrs = {key: getattr(own, key) for key in _ATTRIBUTES if hasattr(own, key)}
            wide = operator(*call.args, **attrs, out_dtype="float32")
        return relax.op.astype(self.emit(wide), dtype)


def _bindings(function: relax.Function) -> list[relax.Binding]:
    return [binding for block in function.body.blocks for binding in block.bindings]


def _is_half(expr: relax.Expr) -> bool:
    return isinstance(expr.ty, relax.TensorType) and dtype_of(expr) in _HALF


def _has_half(expr: relax.Expr) -> bool:
    kinds = expr.ty.fields if isinstance(expr.ty, relax.TupleType) else [expr.ty]
    return any(isinstance(kind, relax.TensorType) and str(kind.dtype) in _HALF for kind in kinds)
