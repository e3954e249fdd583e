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

from tuner.engines.relax.layout.scope import with_attrs
from tuner.engines.relax.rewrites.visitor import dtype_of, name_of

_HALF = ("float16", "bfloat16")
_WIDE = "float32"
_DTYPES = ("dtype", "out_dtype")
# Calls of code whose types are fixed.
_OPAQUE = {"", "call_tir", "call_dps_packed", "call_pure_packed", "memory.view"}


def compute_in_float32(module: tvm.IRModule) -> tvm.IRModule:
    """Convert inputs and constants of half precision to float32, and the outputs back."""
    main = module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    if not any(_has_half(each.var) for each in bindings):
        return module
    if not all(isinstance(binding, relax.VarBinding) for binding in bindings):
        return module
    builder = relax.BlockBuilder()
    widener = _Widener(builder)
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


class _Widener:
    """Values of a function in float32, by the variables that held them in half precision."""

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self._builder = builder
        self._values: dict[relax.Var, relax.Expr] = {}

    def bind(self, variable: relax.Var, value: relax.Expr) -> None:
        """Emit the value of a variable, and convert it if it is of half precision still."""
        emitted = value if isinstance(value, relax.Var) else self._builder.emit(value)
        if _is_half(emitted):
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
        value = self._values.get(expr) if isinstance(expr, relax.Var) else None
        if value is None:
            return expr
        return self._cast(value, expr.ty)

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
        if isinstance(expr, GenericConst) and _is_half(expr):
            return relax.const(np.asarray(expr.value.numpy(), _WIDE, order="C"), _WIDE)
        return self._values.get(expr, expr) if isinstance(expr, relax.Var) else expr


def _is_half(expr: relax.Expr) -> bool:
    return isinstance(expr.ty, relax.TensorType) and dtype_of(expr) in _HALF


def _has_half(expr: relax.Expr) -> bool:
    kinds = expr.ty.fields if isinstance(expr.ty, relax.TupleType) else [expr.ty]
    return any(isinstance(kind, relax.TensorType) and str(kind.dtype) in _HALF for kind in kinds)
