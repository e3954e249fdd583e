"""Inputs of one element that are fixed to a value, or of none, which become constants of the model.

A scalar has no shape to be given, so that a number among the input shapes is its value. A truth
value is not the shape of any input, so that it is always a value.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tuner.errors import ModelError
from tuner.library.manifest import InputValue
from tuner.networks.onnx.graph import Array
from tuner.networks.shapes import Dims, name_dimensions


def split_values(
    declared: Mapping[str, Dims],
    requested: Mapping[str, tuple[int, ...]],
    sizes: Mapping[str, int],
) -> tuple[dict[str, tuple[int, ...]], dict[str, InputValue]]:
    """Separate values from the shapes that were requested.

    Args:
        declared: Shapes declared by the model.
        requested: Shapes by input name; of an input whose shape has one element, a number that is
            not this shape is its value, and so is a truth value.
        sizes: Sizes of dynamic dimensions by name.

    Returns:
        The shapes, and the values by input name.
    """
    # Unnamed dimensions are not shared.
    declared = name_dimensions(declared)

    def is_value(name: str, given: tuple[int, ...]) -> bool:
        dims = declared.get(name)
        if dims is None or len(given) != 1:
            return False
        known = {**_sizes_of_others(name, declared, requested), **sizes}
        shape = tuple(known.get(dim, dim) if isinstance(dim, str) else dim for dim in dims)
        if isinstance(given[0], bool):
            return all(size == 1 or isinstance(size, str) for size in shape)
        return all(size == 1 for size in shape) and shape != given

    values: dict[str, InputValue] = {
        name: given[0] for name, given in requested.items() if is_value(name, given)
    }
    return {name: given for name, given in requested.items() if name not in values}, values


def _sizes_of_others(
    name: str, declared: Mapping[str, Dims], requested: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """Return the sizes of dimensions by the other inputs, but single numbers, perhaps values."""
    return {
        dim: size
        for other, shape in requested.items()
        if other != name and len(shape) > 1
        for dim, size in zip(declared.get(other) or (), shape, strict=False)
        if isinstance(dim, str)
    }


def as_text(value: InputValue) -> str:
    """Return a value as users write it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def fix_values(model: onnx.ModelProto, values: Mapping[str, InputValue]) -> None:
    """Replace inputs of one element, or of none, by constants, in place.

    Args:
        values: Value of each input, or its shape if it has no elements.

    Raises:
        ModelError: If the type of an input does not have a value.
    """
    graph = model.graph
    for info in [info for info in graph.input if info.name in values]:
        value, kind = values[info.name], info.type.tensor_type.elem_type
        # A dimension that other inputs fix has no size here; all are 1.
        dims = [1] * len(info.type.tensor_type.shape.dim)
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        typed = _typed(dims, value, dtype)
        if typed is None:
            raise ModelError(
                f"input {info.name!r} is of type {dtype}, which does not have the value "
                f"{as_text(value)}",
                field="input",
                code="input-shape",
            )
        graph.initializer.append(numpy_helper.from_array(typed, info.name))
        graph.input.remove(info)


def _typed(dims: list[int], value: InputValue, dtype: np.dtype[Any]) -> Array | None:
    """Return an array of one element, or of none; None if its type does not have the value."""
    if isinstance(value, tuple):
        return np.zeros(value, dtype)
    if isinstance(value, bool) and dtype != np.bool_:
        return None
    try:
        with np.errstate(all="ignore"):
            typed = np.full(dims, value, dtype)
            has_value = int(typed.reshape(-1)[0]) == value
    except (OverflowError, TypeError, ValueError):
        return None
    return typed if has_value else None
