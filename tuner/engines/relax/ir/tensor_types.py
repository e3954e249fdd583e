"""Types of the tensors in a Relax graph."""

from typing import Any

import tvm
from tvm import relax


def shape_of(expr: relax.Expr) -> tuple[int, ...]:
    """Return the shape of a tensor with fixed extents."""
    return tuple(int(extent) for extent in expr.ty.shape)


def is_fixed(kind: Any) -> bool:
    """Return whether all tensors in a type have fixed extents; other values have none."""
    if isinstance(kind, relax.TupleType):
        return all(is_fixed(field) for field in kind.fields)
    if not isinstance(kind, relax.TensorType):
        return True
    return isinstance(kind.shape, relax.ShapeExpr) and all(map(is_number, kind.shape))


def is_number(extent: Any) -> bool:
    """Return whether an extent is known."""
    return isinstance(extent, int | tvm.tirx.IntImm)
