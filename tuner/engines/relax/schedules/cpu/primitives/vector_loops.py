"""Vectorised loops over 34 or 48 numbers, as vectors whose sizes are powers of two.

LLVM divides other vectors into single numbers, most of all where it keeps them in registers.
"""

import tvm_ffi
from tvm import tirx
from tvm.tirx import For, ForKind, PrimFunc, SeqStmt, Var

# Numbers of the largest vector of any CPU; LLVM splits it in halves for others.
_MAX_VECTOR = 16


def vector_sizes(extent: int, lanes: int = _MAX_VECTOR) -> list[int]:
    """Return the sizes of the vectors that hold some numbers, the largest first.

    Args:
        extent: Numbers.
        lanes: Numbers of a register, a power of two.
    """
    rest = extent % lanes
    powers = [1 << bit for bit in range(lanes.bit_length() - 1, -1, -1)]
    return [lanes] * (extent // lanes) + [power for power in powers if rest & power]


def split_vectors(function: PrimFunc) -> PrimFunc:
    """Split the vectorised loops of a kernel into vectors whose sizes are powers of two."""
    body = tvm_ffi.structural_map(function.body, (For, _split))
    return function if body.same_as(function.body) else function.with_body(body)


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
