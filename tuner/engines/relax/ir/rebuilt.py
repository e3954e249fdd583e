"""Loops and blocks with other parts: TVM's nodes cannot be changed in place."""

from typing import Any

from tvm.s_tir import SBlock
from tvm.tirx import For, ForKind

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
