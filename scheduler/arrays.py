"""Validation of arguments as one-dimensional arrays."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scheduler.errors import SchedulerError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def as_floats(name: str, values: ArrayLike) -> Floats:
    """Check non-negative numbers, shape (n_tasks,); inf passes.

    Raises:
        SchedulerError: If one is negative or NaN, or the shape is not (n_tasks,).
    """
    array = np.asarray(values, dtype=np.float64)
    _check_shape(name, array.shape)
    refused = np.flatnonzero(~(array >= 0.0))
    if refused.size:
        _refuse(name, refused[0], array[refused[0]])
    return array


def as_counts(name: str, values: ArrayLike) -> Ints:
    """Check non-negative whole numbers, shape (n_tasks,).

    Raises:
        SchedulerError: If one is negative or not an integer, or the shape is not (n_tasks,).
    """
    array = np.asarray(values)
    _check_shape(name, array.shape)
    if array.dtype.kind not in "iu":
        raise SchedulerError(f"{name} must hold integers, got {array.dtype}")
    refused = np.flatnonzero(array < 0)
    if refused.size:
        _refuse(name, refused[0], array[refused[0]])
    return array.astype(np.int64, copy=False)


def as_flags(name: str, values: ArrayLike) -> Bools:
    """Check booleans, shape (n_tasks,).

    Raises:
        SchedulerError: If they are not booleans, or the shape is not (n_tasks,).
    """
    array = np.asarray(values)
    _check_shape(name, array.shape)
    if array.dtype.kind != "b":
        raise SchedulerError(f"{name} must hold booleans, got {array.dtype}")
    return array.astype(np.bool_, copy=False)


def check_same_shape(**arrays: NDArray[np.generic]) -> None:
    """Check that all arrays describe the same tasks.

    Raises:
        SchedulerError: If two shapes disagree; the message holds every shape.
    """
    if len({array.shape for array in arrays.values()}) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise SchedulerError(f"arrays must have one entry per task, got {shapes}")


def _check_shape(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 1 or shape[0] == 0:
        raise SchedulerError(f"{name} must have shape (n_tasks,), n_tasks >= 1, got {shape}")


def _refuse(name: str, index: np.intp, value: object) -> None:
    raise SchedulerError(f"{name} must be non-negative numbers, got {value} for task {index}")
