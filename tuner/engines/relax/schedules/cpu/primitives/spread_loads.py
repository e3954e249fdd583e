"""Vectors whose lanes read the numbers of their groups: one load and a shuffle.

A vector of outputs of a grouped convolution lies in several groups, each of which reads a number of
its own. TVM loads such numbers one by one. Here the load in a marked block becomes a call that
stands for its own argument, until it is known which lanes of a vector read the same number.
"""

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Op, register_op_attr
from tvm.s_tir import SBlock
from tvm.sym import Analyzer
from tvm.tirx import For, ForKind, PrimFunc, SeqStmt, Var

from tuner.engines.relax.ir import ir_checks
from tuner.engines.relax.ir.rebuilt import rebuilt_block, with_body

#: Annotation of a product whose vectors lie in several groups: the columns of a group, and the
#: numbers that it reads. Also the attribute of its kernel.
MARK = "tuner.groups"
_NAME = "tirx.tuner_spread"
_PURE = 1
# TVM's own rules for llvm have level 10.
_LEVEL = 20
_REDUCTION = 2
_MIN_VECTOR = 2
# Numbers of the largest vector of any CPU; LLVM splits it in halves for others.
_MAX_VECTOR = 16


def register() -> None:
    """Have TVM know the call, and compile it for CPUs, in this process."""
    if _NAME in Op.list_op_names():
        return
    tvm_ffi.get_global_func("ir.RegisterOp")(_NAME, "A number that the lanes of a group read.")
    register_op_attr(_NAME, "TVectorizable", True)
    register_op_attr(_NAME, "TCallEffectKind", _PURE)
    register_op_attr(_NAME, "TScriptPrinterName", _NAME)
    tirx.op.register_intrin_lowering(_NAME, target="llvm", f=_lower, level=_LEVEL)


def spread_loads(function: PrimFunc) -> PrimFunc:
    """Mark the loads of a scheduled kernel that shuffles can do, in blocks with the mark."""
    if not ir_checks.is_annotated(function, MARK):
        return function
    body = tvm_ffi.structural_map(function.body, (SBlock, _spread_block))
    return function.with_body(body).with_attr(MARK, True)


def pass_config(module: tvm.IRModule) -> dict[str, bool]:
    """Return the settings with which kernels compile: shuffles need the indices of their loads."""
    is_marked = any(MARK in (function.attrs or {}) for function in module.functions.values())
    return {"tirx.disable_cse_tir": True} if is_marked else {}


def _spread_block(block: SBlock) -> SBlock:
    if MARK not in block.annotations:
        return block
    n_out, n_in = (int(number) for number in block.annotations[MARK])
    reduced = [axis.var for axis in block.iter_vars if int(axis.iter_type) == _REDUCTION]

    def spread(load: Any) -> Any:
        if not _divides(load.indices[-1], n_out):
            return load
        return tirx.call_intrin(load.ty, _NAME, load, n_out, n_in, reduced[-1])

    return rebuilt_block(
        block,
        body=tvm_ffi.structural_map(block.body, (ir.TensorLoad, spread)),
        annotations={key: value for key, value in block.annotations.items() if key != MARK},
    )


def _divides(index: Any, divisor: int) -> bool:
    """Return whether an index depends on a quotient of a variable by a number."""
    if isinstance(index, tirx.FloorDiv) and isinstance(index.b, tirx.IntImm):
        return int(index.b) == divisor
    parts = (getattr(index, name, None) for name in ("a", "b"))
    return any(part is not None and _divides(part, divisor) for part in parts)


def _lower(call: Any) -> Any:
    """Return one load of all groups and a shuffle; the argument if its lanes are not in groups."""
    load, *arguments = call.args
    constants = [number for number in map(_constant, arguments) if number is not None]
    *outer, index = load.indices
    n_lanes = _n_lanes(index)
    if len(constants) < len(arguments):
        return load
    n_out, n_in, place = constants
    n_numbers = n_lanes // n_out * n_in
    if n_lanes % n_out or n_numbers < _MIN_VECTOR:
        return load
    lanes = [_lane(index, number) for number in range(n_lanes)]
    analyzer = Analyzer()
    for number, lane in enumerate(lanes):
        if not analyzer.can_prove_equal(lane - lanes[0], number // n_out * n_in):
            return load
    numbers = tirx.Ramp(lanes[0] - place, tirx.const(1, "int32"), n_numbers)
    loaded = tirx.BufferLoad(load.source, [*outer, numbers])
    # TVM requires as many lanes as results.
    copies = [loaded] * -(-n_lanes // n_numbers)
    places = [number // n_out * n_in + place for number in range(n_lanes)]
    return tirx.Shuffle(copies, [tirx.const(each, "int32") for each in places])


def _constant(number: Any) -> int | None:
    while isinstance(number, tirx.Broadcast):
        number = number.value
    return int(number) if isinstance(number, tirx.IntImm) else None


def _n_lanes(index: Any) -> int:
    return int(tvm.DataType(str(index.ty.dtype)).lanes)


def _lane(index: Any, number: int) -> Any:
    """Return one lane of a vector of indices."""
    if _n_lanes(index) == 1:
        return index
    if isinstance(index, tirx.Ramp):
        return index.base + index.stride * number
    if isinstance(index, tirx.Broadcast):
        return index.value
    if hasattr(index, "a") and hasattr(index, "b"):
        return type(index)(_lane(index.a, number), _lane(index.b, number))
    return tirx.Shuffle([index], [tirx.const(number, "int32")])


def vector_sizes(extent: int, lanes: int = _MAX_VECTOR) -> list[int]:
    """Return the sizes of the vectors that hold some numbers, the largest first.

    Args:
        lanes: Numbers of a register, a power of two.
    """
    rest = extent % lanes
    powers = [1 << bit for bit in range(lanes.bit_length() - 1, -1, -1)]
    return [lanes] * (extent // lanes) + [power for power in powers if rest & power]


def split_vectors(function: PrimFunc) -> PrimFunc:
    """Split the vectorised loops of a kernel into vectors whose sizes are powers of two."""
    body = tvm_ffi.structural_map(function.body, (For, _split))
    return with_body(function, body)


def _split(loop: For) -> For | SeqStmt:
    """Return loops over the vectors of a loop, or the loop if it is a vector already."""
    if loop.kind != ForKind.VECTORIZED or not isinstance(loop.extent, tirx.IntImm):
        return loop
    extent = int(loop.extent)
    if extent & (extent - 1) == 0:
        return loop
    start, loops = 0, []
    for size in vector_sizes(extent):
        loops.append(_part(loop, start, size))
        start += size
    return SeqStmt(loops)


def _part(loop: For, start: int, size: int) -> For:
    """Return a loop over a part of the numbers of another."""
    dtype = str(loop.extent.ty.dtype)
    lane = Var(f"{loop.loop_var.name}_{start}", dtype)
    index = loop.min + tirx.const(start, dtype) + lane
    body = tvm_ffi.structural_map(
        loop.body, (Var, lambda variable: index if variable.same_as(loop.loop_var) else variable)
    )
    zero, extent = tirx.const(0, dtype), tirx.const(size, dtype)
    return For(lane, zero, extent, ForKind.VECTORIZED if size > 1 else ForKind.SERIAL, body)
