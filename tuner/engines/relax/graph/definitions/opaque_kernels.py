"""Kernels that operators define as loops inside one block, which no schedule changes: scatters."""

import tvm
import tvm_ffi
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import For, ForKind, PrimFunc

from tuner.engines.relax.ir.rebuilt import rebuilt, with_body, with_kernels

_ROOT = "root"


def normalise_kernels(module: tvm.IRModule) -> tvm.IRModule:
    """Give every kernel a root block, by whose name schedules find others, and serial inner loops.

    TVM defines a scatter with a parallel loop for each of its updates: starting the threads takes
    longer than the update.
    """
    return with_kernels(module, _normalise)


def _normalise(function: PrimFunc) -> PrimFunc:
    body = tvm_ffi.structural_map(function.body, (For, _with_serial_loops))
    if isinstance(body, SBlockRealize) and body.block.name_hint != _ROOT:
        body = SBlockRealize([], True, SBlock([], [], [], _ROOT, body))
    return with_body(function, body)


def _with_serial_loops(loop: For) -> For:
    """Make the parallel loops inside a loop serial."""
    body = tvm_ffi.structural_map(loop.body, (For, _as_serial))
    if body.same_as(loop.body):
        return loop
    return rebuilt(loop, body)


def _as_serial(loop: For) -> For:
    if loop.kind != ForKind.PARALLEL:
        return loop
    return rebuilt(loop, loop.body, ForKind.SERIAL)
