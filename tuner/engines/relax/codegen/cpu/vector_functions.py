"""Registration of elementary functions with TVM's code generators: vectors on CPUs.

Half precision is computed in float32 and rounded once.
"""

from collections.abc import Callable
from typing import Any

from tvm import ir, tirx
from tvm.ir import Op, register_op_attr

from tuner.engines.relax.codegen.cpu import vector_math
from tuner.engines.relax.codegen.cpu.vector_math import dtype_of, type_like

# TVM's own rules for llvm have level 10.
_LEVEL = 20
#: Functions of float32 that become vector instructions.
FUNCTIONS = (
    *("exp", "exp2", "log", "log2", "log10", "pow", "rsqrt"),
    *("tanh", "sigmoid", "erf", "sinh", "cosh"),
    *("sin", "cos", "tan", "asin", "acos", "atan"),
    *("asinh", "acosh", "atanh", "log1p"),
)
# Names of intrinsics outside of TVM's usual name space.
_OPS = {"log2": "prim.log2"}
#: Names of the intrinsics of these functions.
OPERATORS = tuple(_OPS.get(name, f"tirx.{name}") for name in FUNCTIONS)
# Functions of half precision that TVM compiles to one call an element, or not at all.
_IN_FLOAT32 = ("sqrt",)
# Functions that CUDA has for float32, and not for half precision.
_IN_FLOAT32_BY_CUDA = ("acos", "acosh", "asin", "asinh", "atanh", "cosh", "log1p", "sinh")

# Expressions that cost nothing to repeat.
_ATOMS = (ir.TensorLoad, ir.Var, tirx.FloatImm)

_Function = Callable[..., Any]


def register() -> None:
    """Have TVM compile these functions for CPUs in this process."""
    for name, operator in zip(FUNCTIONS, OPERATORS, strict=True):
        _register(operator, getattr(vector_math, name))
    for name in _IN_FLOAT32:
        _register(f"tirx.{name}", None)
    # TVM makes loops of vectors of these; each element is then computed alone.
    for name in ("erf", "rsqrt", "nearbyint"):
        register_op_attr(f"tirx.{name}", "TVectorizable", True)


def register_for_cuda() -> None:
    """Have TVM compute in float32 what CUDA lacks in half precision, in this process."""
    for name in _IN_FLOAT32_BY_CUDA:
        _register(f"tirx.{name}", None, "cuda")


def _register(name: str, function: _Function | None, target: str = "llvm") -> None:
    op = Op.get(name)
    lower_otherwise = op.get_attr(f"{target}.FLowerIntrinsic") or op.get_attr(
        "default.FLowerIntrinsic"
    )

    def lower(call: Any) -> Any:
        dtype = dtype_of(call)
        if dtype.startswith(("float16", "bfloat16")):
            wide = type_like(call, "float32")
            widened = [tirx.Cast(wide, argument) for argument in call.args]
            return tirx.Cast(dtype, tirx.call_intrin(wide, call.op, *widened))
        if function is not None and dtype.startswith("float32"):
            return _with_names(function, call.args)
        return call if lower_otherwise is None else lower_otherwise(call)

    tirx.op.register_intrin_lowering(name, target=target, f=lower, level=_LEVEL)


def _with_names(function: _Function, arguments: Any) -> Any:
    """Call a function with computed arguments bound to variables, as it uses each many times.

    Nested functions would otherwise grow exponentially.
    """
    is_computed = [not isinstance(each, _ATOMS) for each in arguments]
    names = [
        tirx.Var("x", each.ty) if computed else each
        for each, computed in zip(arguments, is_computed, strict=True)
    ]
    result = function(*names)
    for name, value, computed in zip(names, arguments, is_computed, strict=True):
        if computed:
            result = tirx.Let(name, value, result)
    return result
