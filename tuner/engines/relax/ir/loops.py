"""Loops with another body: TVM's nodes cannot be changed in place."""

from typing import Any

from tvm.tirx import For, ForKind


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
