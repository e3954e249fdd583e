"""Inputs of one element that are fixed to a value: they become constants of the model.

A scalar has no shape to be given, so that a number among the input shapes is its value.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tuner.errors import ModelError
from tuner.networks.graph import Array
from tuner.networks.shapes import Dims


def split_values(
    declared: Mapping[str, Dims], requested: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """Separate values from the shapes that were requested.

    Args:
        declared: Shapes declared by the model.
        requested: Shapes by input name; of an input whose declared shape has one element, a number
            that is not this shape is its value.

    Returns:
        The shapes, and the values by input name.
    """
    values = {
        name: given[0] for name, given in requested.items() if _is_value(declared.get(name), given)
    }
    return {name: given for name, given in requested.items() if name not in values}, values


def takes_value(dims: Dims) -> bool:
    """Return whether an input of a declared shape has one element."""
    return dims is not None and all(isinstance(d, int) for d in dims) and prod(map(int, dims)) == 1


def _is_value(dims: Dims, given: tuple[int, ...]) -> bool:
    return takes_value(dims) and len(given) == 1 and dims != given


def fix_values(model: onnx.ModelProto, values: Mapping[str, int]) -> None:
    """Replace inputs of one element by constants, in place.

    Raises:
        ModelError: If the type of an input does not have a value.
    """
    graph = model.graph
    for info in [info for info in graph.input if info.name in values]:
        value, kind = values[info.name], info.type.tensor_type.elem_type
        dims = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        typed = _typed(dims, value, dtype)
        if typed is None:
            raise ModelError(
                f"input {info.name!r} is of type {dtype}, which does not have the value {value}",
                field="input",
                code="input-shape",
            )
        graph.initializer.append(numpy_helper.from_array(typed, info.name))
        graph.input.remove(info)


def _typed(dims: list[int], value: int, dtype: np.dtype[Any]) -> Array | None:
    """Return an array of one element; None if its type does not have the value."""
    try:
        with np.errstate(all="ignore"):
            typed = np.full(dims, value, dtype)
            has_value = int(typed.reshape(-1)[0]) == value
    except (OverflowError, TypeError, ValueError):
        return None
    return typed if has_value else None
