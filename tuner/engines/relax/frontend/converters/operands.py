"""Constants and texts that converters of ONNX operators read."""

from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst


def constant_array(value: Any) -> Any:
    """Return the value of a constant or of a shape, as an array; None without a value.

    Raises:
        NotImplementedError: If the network computes it.
    """
    if value is None:
        return None
    if isinstance(value, relax.ShapeExpr):
        return np.array([int(dim) for dim in value.values])
    if not isinstance(value, GenericConst):
        raise NotImplementedError("a value that must be constant is computed")
    return value.value.numpy()


def as_text(value: bytes | str) -> str:
    """Return an attribute that is a text."""
    return value.decode() if isinstance(value, bytes) else str(value)
