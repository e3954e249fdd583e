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
    """A collection of weights that stores equal ones, of one or several programs, once."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._by_start: dict[Any, list[int]] = {}

    def add(self, value: Any) -> int:
        """Add a tensor unless the pool has an equal one; return its index."""
        content = _content(value)
        # Different weights usually differ within their first numbers, so few are compared whole.
        start = content[:_START_BYTES].tobytes()
        key = (tuple(int(size) for size in value.shape), str(value.dtype), start)
        candidates = self._by_start.setdefault(key, [])
        for index in candidates:
            if np.array_equal(_content(self._values[index]), content):
                return index
        candidates.append(len(self._values))
        self._values.append(value)
        return candidates[-1]

    def write(self, path: Path) -> tuple[Weight, ...]:
        """Write all weights to a file; without weights, write no file."""
        entries = []
        if not self._values:
            return ()
        with path.open("wb") as stream:
            for value in self._values:
                array = value.numpy()
                stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
                shape = tuple(int(size) for size in array.shape)
                entries.append(Weight(stream.tell(), array.nbytes, shape, str(value.dtype)))
                stream.write(array.reshape(-1).view(np.uint8).data)
        return tuple(entries)


def load_weights(path: Path, entries: tuple[Weight, ...], device: Any) -> list[Any]:
    """Read weights as tensors on a device."""
    if not entries:
        return []
    content = np.memmap(path, np.uint8, "r")
    return [
        tvm.runtime.tensor(
            content[entry.offset : entry.offset + entry.n_bytes]
            .view(np.dtype(entry.dtype))
            .reshape(entry.shape),
            device,
        )
        for entry in entries
    ]


def _content(value: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of a tensor."""
    return np.asarray(value.numpy(), order="C").reshape(-1).view(np.uint8)
