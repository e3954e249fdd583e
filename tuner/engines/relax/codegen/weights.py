"""Weights file of a library, read by all its programs."""

from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tuner.library.manifest import Weight

WEIGHTS = "weights.bin"
# Alignment of the widest vector load, bytes.
_ALIGNMENT = 64
_START_BYTES = 256


class WeightPool:
    """A collection of weights whose file stores equal bytes, of one or several programs, once."""

    def __init__(self) -> None:
        self._stored: list[Any] = []
        self._by_start: dict[bytes, list[int]] = {}
        # Programs of other shapes may take the same bytes in other shapes.
        self._weights: dict[tuple[int, tuple[int, ...], str], int] = {}

    def add(self, value: Any) -> int:
        """Add a tensor unless the pool has an equal one; return its index."""
        shape = tuple(int(size) for size in value.shape)
        weight = (self._store(value), shape, str(value.dtype))
        return self._weights.setdefault(weight, len(self._weights))

    def values(self) -> list[Any]:
        """Return the weights in the order of their indices."""
        return [self._stored[number] for number, _, _ in self._weights]

    def write(self, path: Path) -> tuple[Weight, ...]:
        """Write all weights to a file; without weights, write no file."""
        if not self._weights:
            return ()
        spans = []
        with path.open("wb") as stream:
            for value in self._stored:
                content = _content(value)
                stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
                spans.append((stream.tell(), content.nbytes))
                stream.write(content.data)
        return tuple(Weight(*spans[number], shape, dtype) for number, shape, dtype in self._weights)

    def _store(self, value: Any) -> int:
        content = _content(value)
        # Different weights usually differ within their first numbers, so few are compared whole.
        candidates = self._by_start.setdefault(content[:_START_BYTES].tobytes(), [])
        for number in candidates:
            if np.array_equal(_content(self._stored[number]), content):
                return number
        candidates.append(len(self._stored))
        self._stored.append(value)
        return candidates[-1]


def load_weights(path: Path, entries: tuple[Weight, ...], device: Any) -> list[Any]:
    """Read weights as tensors on a device; equal bytes share memory."""
    if not entries:
        return []
    content = np.memmap(path, np.uint8, "r")
    spans = {(entry.offset, entry.n_bytes) for entry in entries}
    stored = {span: tvm.runtime.tensor(content[span[0] : sum(span)], device) for span in spans}
    return [
        stored[entry.offset, entry.n_bytes]._create_view(entry.shape, entry.dtype)
        for entry in entries
    ]


def _content(value: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of a tensor."""
    return np.asarray(value.numpy(), order="C").reshape(-1).view(np.uint8)
