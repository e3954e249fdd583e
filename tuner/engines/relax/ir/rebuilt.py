"""Modules, kernels, loops and blocks with other parts: TVM's nodes cannot be changed in place."""

from collections.abc import Callable
from typing import Any

import tvm
from tvm.s_tir import SBlock
from tvm.tirx import For, ForKind, PrimFunc

_PARTS = (
    *("iter_vars", "reads", "writes", "name_hint", "body"),
    *("init", "alloc_buffers", "match_buffers", "annotations"),
)


def rebuilt(loop: For, body: Any, kind: ForKind | None = None) -> For:
    """Return a loop with another body, and of another kind if one is given."""
    return For(
        loop.loop_var,
        loop.min,
        loop.extent,
        loop.kind if kind is None else kind,
        body,
        loop.thread_binding,
        loop.annotations,
        loop.step,
    )


def rebuilt_block(block: SBlock, **changes: Any) -> SBlock:
    """Return a block whose given parts, named as its attributes, are others."""
    return SBlock(*(changes[part] if part in changes else getattr(block, part) for part in _PARTS))


def with_kernels(module: tvm.IRModule, change: Callable[[PrimFunc], PrimFunc]) -> tvm.IRModule:
    """Return a module with its kernels changed, and all other functions as they are."""
    functions = {
        name: change(function) if isinstance(function, PrimFunc) else function
        for name, function in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


def with_body(function: PrimFunc, body: Any) -> PrimFunc:
    """Return a kernel with another body; the kernel itself if it is the same body."""
    return function if body.same_as(function.body) else function.with_body(body)
