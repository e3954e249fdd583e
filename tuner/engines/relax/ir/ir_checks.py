"""Checks of IR that may come from a log; see :mod:`tuner.engines.allowed_calls`."""

from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir import SBlock
from tvm.tirx import AttrStmt, For, ForKind, PrimFunc

from tuner.engines.allowed_calls import check_annotations, check_calls
from tuner.errors import WorkError


def check(module: Any) -> None:
    """Check that a module consists of kernels that only compute.

    Raises:
        WorkError: If it does not.
    """
    if not isinstance(module, tvm.IRModule) or module.attrs:
        raise WorkError("a subgraph is a module without attributes")
    for function in module.functions.values():
        if not isinstance(function, PrimFunc):
            raise WorkError(f"a subgraph consists of kernels, not of {type(function).__name__}")
        calls, keys = calls_and_keys(function)
        check_calls(calls)
        check_annotations([*keys, *map(str, (function.attrs or {}).keys())])


def calls_and_keys(function: PrimFunc) -> tuple[set[str], set[str]]:
    """Return the operators that a kernel calls, and the keys of its annotations."""
    calls: set[str] = set()
    keys: set[str] = set()

    def annotated(node: Any) -> None:
        keys.update(map(str, node.annotations.keys()))

    tvm_ffi.structural_walk(
        function.body,
        [
            (tvm.ir.Call, lambda call: calls.add(str(getattr(call.op, "name", call.op)))),
            (AttrStmt, lambda node: keys.add(str(node.attr_key))),
            (For, annotated),
            (SBlock, annotated),
        ],
    )
    return calls, keys


def n_parallel(function: PrimFunc) -> int:
    """Return the largest number of iterations that threads share; 1 without a parallel loop."""
    extents = [1]

    def visit(loop: For) -> None:
        if loop.kind == ForKind.PARALLEL:
            extents.append(int(loop.extent))

    tvm_ffi.structural_walk(function.body, ((For, visit),))
    return max(extents)


def is_annotated(function: PrimFunc, key: str) -> bool:
    """Return whether a block of a kernel has an annotation."""
    blocks: list[SBlock] = []
    tvm_ffi.structural_walk(function.body, ((SBlock, blocks.append),))
    return any(key in block.annotations for block in blocks)
