"""Intermediate results of nested functions in buffers, which LLVM keeps in registers.

TVM's code generator simplifies what each variable stands for, with the variables inside replaced: a
function that uses its argument a hundred times would make the expression a hundred times as long.
"""

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import PrimFunc, SeqStmt, compilation_pipeline

from tuner.engines.relax.codegen.cpu import vector_functions
from tuner.engines.relax.codegen.cpu.vector_math import dtype_of
from tuner.engines.relax.graph.definitions import extremes
from tuner.engines.relax.ir.rebuilt import with_kernels

#: Name of TVM's default passes for CPUs, and this one.
PIPELINE = "tuner"

# TVM would allocate workspaces otherwise, which LLVM cannot keep in registers.
_ON_THE_STACK = {"disable_lower_builtin": tirx.const(1, "int32")}
_MIN_NESTED = 2
_STORED_TYPES = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8")


def register() -> None:
    """Have TVM know the passes in this process."""
    compilation_pipeline.register_tir_pipeline(PIPELINE, _passes)


def _passes() -> tuple[Any, Any, Any]:
    lower, *others = compilation_pipeline.get_tir_pipeline("default")
    passes = [extremes.start_at_infinity, lower, extremes.keep_nan, _store_intermediates]
    return (tvm.transform.Sequential(passes), *others)


@tvm.transform.module_pass(opt_level=0, name="tuner.StoreIntermediates")  # type: ignore[untyped-decorator]
def _store_intermediates(module: tvm.IRModule, _: Any) -> tvm.IRModule:
    return with_kernels(module, store_intermediates)


def store_intermediates(function: PrimFunc) -> PrimFunc:
    """Store the computed arguments and named results of elementary functions in buffers."""
    if sum(map(_is_function, _calls(function.body))) < _MIN_NESTED:
        return function
    body = tvm_ffi.structural_map(function.body, (tirx.BufferStore, _split_store))
    body = tvm_ffi.structural_map(body, (tirx.Bind, _split_binding))
    if body.same_as(function.body):
        return function
    return function.with_body(tvm_ffi.structural_map(body, (SeqStmt, _flatten)))


def _split_store(store: Any) -> Any:
    statements: list[Any] = []
    value = _without_nesting(store.value, statements)
    if not statements:
        return store
    return SeqStmt([*statements, tirx.BufferStore(store.buffer, value, store.indices)])


def _split_binding(binding: Any) -> Any:
    if not _calls_function(binding.value):
        return binding
    statements: list[Any] = []
    value = _stored(_without_nesting(binding.value, statements), statements)
    return SeqStmt([*statements, tirx.Bind(binding.var, value)])


def _without_nesting(expression: Any, statements: list[Any]) -> Any:
    """Return an expression whose functions have arguments without functions."""

    def store_arguments(call: Any) -> Any:
        if not _is_function(call):
            return call
        arguments = [
            _stored(each, statements) if _calls_function(each) else each for each in call.args
        ]
        return tirx.call_intrin(call.ty, call.op, *arguments)

    if len(_calls(expression)) < _MIN_NESTED or _is_lazy(expression):
        return expression
    return tvm_ffi.structural_map(expression, (ir.Call, store_arguments))


def _calls_function(expression: Any) -> bool:
    return any(map(_is_function, _calls(expression)))


def _is_lazy(expression: Any) -> bool:
    """Return whether functions are called under a condition, and must not be called outside."""
    return any(
        call.op.name == "tirx.if_then_else" and _calls_function(each)
        for call in _calls(expression)
        for each in call.args
    )


def _calls(expression: Any) -> list[Any]:
    calls: list[Any] = []

    def collect(call: Any) -> Any:
        calls.append(call)
        return call

    tvm_ffi.structural_map(expression, (ir.Call, collect))
    return [call for call in calls if isinstance(call.op, ir.Op)]


def _is_function(call: Any) -> bool:
    return isinstance(call.op, ir.Op) and call.op.name in vector_functions.OPERATORS


def _stored(value: Any, statements: list[Any]) -> Any:
    """Return a load of a new buffer that statements fill with a value."""
    scalar, _, lanes = dtype_of(value).partition("x")
    if scalar not in _STORED_TYPES or _is_lazy(value):
        return value
    n_lanes = int(lanes or 1)
    buffer = tirx.decl_buffer((n_lanes,), scalar, name="intermediate", scope="local")
    zero = tirx.const(0, "int32")
    index = zero if n_lanes == 1 else tirx.Ramp(zero, tirx.const(1, "int32"), n_lanes)
    statements += [
        tirx.AllocBuffer(buffer, _ON_THE_STACK),
        tirx.BufferStore(buffer, value, [index]),
    ]
    return tirx.BufferLoad(buffer, [index])


def _flatten(sequence: Any) -> Any:
    """Return a sequence in which no member is a sequence, so that all see its variables."""
    members: list[Any] = []
    for each in sequence.seq:
        members += each.seq if isinstance(each, SeqStmt) else [each]
    return SeqStmt(members)
