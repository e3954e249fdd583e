"""Layout of the arrays of a library in shared memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Spec = tuple[tuple[int, ...], str]

_ALIGNMENT = 64


@dataclass(frozen=True)
class Signature:
    """Shapes and dtypes of the inputs and outputs of a program, in order."""

    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]


def n_bytes(signatures: Sequence[Signature]) -> int:
    """Return the bytes that the largest program needs; programs run one at a time."""
    return max(_end(signature) for signature in signatures)


def views(signature: Signature, memory: Any) -> tuple[list[Array], list[Array]]:
    """Return the inputs and the outputs of a program as arrays in a buffer."""
    arrays, start = [], 0
    for shape, dtype in (*signature.inputs, *signature.outputs):
        kind = np.dtype(dtype)
        count = math.prod(shape)
        array = np.frombuffer(memory, kind, count, start).reshape(shape)
        arrays.append(array)
        start += _aligned(count * kind.itemsize)
    n_inputs = len(signature.inputs)
    return arrays[:n_inputs], arrays[n_inputs:]


def _end(signature: Signature) -> int:
    sizes = [
        _aligned(math.prod(shape) * np.dtype(dtype).itemsize)
        for shape, dtype in (*signature.inputs, *signature.outputs)
    ]
    return max(sum(sizes), _ALIGNMENT)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
