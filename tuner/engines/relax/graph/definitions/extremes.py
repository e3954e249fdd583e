"""Maxima and minima of floating-point numbers as those of IEEE 754-2019, and conversions of them.

TVM compiles ``max(a, b)`` to ``a > b ? a : b`` for CPUs, which loses a NaN in ``a``, and to a
function that loses both for GPUs. Its reductions start at the lowest finite number, which is
larger than minus infinity. The definitions of kernels keep TVM's form, which its schedules
recognise. What they stand for is compiled here.
"""

import math
from typing import Any

import ml_dtypes
import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import PrimFunc

from tuner.engines.relax.codegen.cpu.vector_math import dtype_of
from tuner.engines.relax.ir.rebuilt import with_body, with_kernels

_INTRINSICS = {tirx.Max: "llvm.maximum", tirx.Min: "llvm.minimum"}
# Functions that ``nvrtc.py`` adds to the source.
_CUDA_FUNCTIONS = {tirx.Max: "tuner_max", tirx.Min: "tuner_min"}
_LARGEST_BYTE = 255
_NARROW = ("int8", "uint8", "int16", "uint16")
# Expressions that cost nothing to repeat.
_ATOMS = (ir.TensorLoad, ir.Var)


@tvm.transform.module_pass(opt_level=0, name="tuner.StartAtInfinity")  # type: ignore[untyped-decorator]
def start_at_infinity(module: tvm.IRModule, _: Any) -> tvm.IRModule:
    """Let maxima and minima start at infinities.

    Kernels for CPUs are changed before they are lowered; those for GPUs after that, which needs the
    start of TVM where threads share a reduction.
    """
    return with_kernels(module, _starting_at_infinity)


@tvm.transform.module_pass(opt_level=0, name="tuner.KeepNaN")  # type: ignore[untyped-decorator]
def keep_nan(module: tvm.IRModule, _: Any) -> tvm.IRModule:
    """Let maxima and minima of kernels without blocks, for CPUs, be NaN where an operand is."""
    return with_kernels(module, _keeping_nan)


@tvm.transform.module_pass(opt_level=0, name="tuner.CallCUDA")  # type: ignore[untyped-decorator]
def call_cuda(module: tvm.IRModule, _: Any) -> tvm.IRModule:
    """Let maxima and minima of lowered kernels for GPUs be calls of functions that keep NaN."""
    return with_kernels(module, _calling_cuda)


def _starting_at_infinity(function: PrimFunc) -> PrimFunc:
    starts: dict[Any, float] = {}

    def collect(store: Any) -> Any:
        kind = type(store.value)
        if kind in _INTRINSICS and _is_float(store.value):
            loads = [x for x in (store.value.a, store.value.b) if isinstance(x, ir.TensorLoad)]
            if any(load.source.same_as(store.buffer) for load in loads):
                starts[store.buffer] = float("-inf" if kind is tirx.Max else "inf")
        return store

    def replace(store: Any) -> Any:
        start = starts.get(store.buffer)
        is_vector = isinstance(store.value, tirx.Broadcast)
        value = store.value.value if is_vector else store.value
        if start is None or not isinstance(value, tirx.FloatImm):
            return store
        largest = float(ml_dtypes.finfo(dtype_of(value)).max)  # type: ignore[no-untyped-call]
        if value.value != (-largest if start < 0 else largest):
            return store
        infinity = tirx.const(start, dtype_of(value))
        if is_vector:
            infinity = tirx.Broadcast(infinity, store.value.lanes)
        return tirx.BufferStore(store.buffer, infinity, store.indices)

    tvm_ffi.structural_map(function.body, (tirx.BufferStore, collect))
    if not starts:
        return function
    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.BufferStore, replace)))


def _keeping_nan(function: PrimFunc) -> PrimFunc:
    body = function.body
    for kind in _INTRINSICS:
        body = tvm_ffi.structural_map(body, (kind, _with_nan_of_both))
    body = tvm_ffi.structural_map(body, (tirx.Cast, _defined))
    return with_body(function, body)


def _calling_cuda(function: PrimFunc) -> PrimFunc:
    body = function.body
    for kind in _CUDA_FUNCTIONS:
        body = tvm_ffi.structural_map(body, (kind, _cuda_call))
    return with_body(function, body)


def _cuda_call(extreme: Any) -> Any:
    if not _is_float(extreme):
        return extreme
    name = _CUDA_FUNCTIONS[type(extreme)]
    return tirx.call_pure_extern(dtype_of(extreme), name, extreme.a, extreme.b)


def _with_nan_of_both(extreme: Any) -> Any:
    """Return an extreme that is NaN where an operand is.

    TVM's own is its second operand where one is NaN, which takes one instruction. LLVM makes
    vectors of reductions by its own intrinsic, whose vectors take five instructions. The NaN is a
    constant: of a choice between the operands LLVM makes four instructions instead of three.
    """
    if not _is_float(extreme):
        return extreme
    kind, first, second = type(extreme), extreme.a, extreme.b
    if _is_number(second) or isinstance(second, _ATOMS):
        first, second = second, first
    if _is_number(first):
        return kind(first, second)
    scalar, _, lanes = dtype_of(extreme).partition("x")
    if isinstance(first, _ATOMS) and lanes:
        nan = tirx.Broadcast(tirx.const(math.nan, scalar), int(lanes))
        return tirx.Select(tirx.isnan(first), nan, kind(first, second))
    return tirx.call_llvm_pure_intrin(dtype_of(extreme), _INTRINSICS[kind], first, second)


def _defined(cast: Any) -> Any:
    """Return a conversion to an integer that is defined for every floating-point number.

    A clipped number becomes a limit where it is NaN. Another one becomes the low bits of an int32,
    as torch and ONNX Runtime have it, where vectors of narrower types would saturate.
    """
    value, dtype = cast.value, dtype_of(cast)
    if _is_float(cast) or not _is_float(value):
        return cast
    if type(value) in _INTRINSICS and _is_number(value.a):
        return tirx.Cast(cast.ty, type(value)(value.b, value.a))
    codes = _rounded_codes(value) if dtype.startswith("uint8") else None
    if codes is not None:
        return tirx.Cast(cast.ty, codes)
    element, _, lanes = dtype.partition("x")
    if element not in _NARROW:
        return cast
    return tirx.Cast(cast.ty, tirx.Cast(f"int32x{lanes}" if lanes else "int32", value))


def _rounded_codes(value: Any) -> Any:
    """Return clipped and rounded numbers as int32 that LLVM packs to bytes; None for all else.

    The instructions that pack integers saturate, so that limits of a byte cost nothing after the
    conversion, which rounds as they do: ``max(min(convert(min(x, high)), 255), 0)``.
    """
    zero = 0.0
    if isinstance(value, tirx.Add) and _is_number(value.b):
        value, zero = value.a, _number(value.b)
    if not isinstance(value, ir.Call) or value.op.name != "tirx.nearbyint":
        return None
    (clipped,) = value.args
    if not isinstance(clipped, tirx.Max) or not isinstance(clipped.b, tirx.Min):
        return None
    limits = (clipped.a, clipped.b.a)
    if not all(map(_is_number, limits)) or dtype_of(clipped).partition("x")[0] != "float32":
        return None
    low, high = (_number(limit) + zero for limit in limits)
    if low < 0.0 or high > _LARGEST_BYTE:
        return None
    # In this order, NaN becomes the limit.
    numbers = tirx.Max(clipped.b, clipped.a) if low else clipped.b
    if zero:
        numbers = tirx.call_intrin(value.ty, value.op, numbers) + tirx.const(zero, value.ty.dtype)
    kind = dtype_of(value).replace("float", "int")
    codes = tirx.call_llvm_pure_intrin(kind, "llvm.lrint", numbers)
    largest, least = (tirx.const(limit, kind) for limit in (_LARGEST_BYTE, 0))
    return tirx.Max(tirx.Min(codes, largest), least)


def _is_number(expression: Any) -> bool:
    """Return whether an expression is a constant other than NaN."""
    constant = expression.value if isinstance(expression, tirx.Broadcast) else expression
    return isinstance(constant, tirx.FloatImm) and not math.isnan(constant.value)


def _number(constant: Any) -> float:
    """Return the value of a constant, or that of all its lanes."""
    return float((constant.value if isinstance(constant, tirx.Broadcast) else constant).value)


def _is_float(expression: Any) -> bool:
    return dtype_of(expression).startswith(("float", "bfloat"))
