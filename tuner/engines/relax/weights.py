"""The weights of a library: one file that all its programs read."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tuner.library.manifest import Weight

WEIGHTS = "weights.bin"
# As far apart as the widest vector load wants them.
_ALIGNMENT = 64


class WeightPool:
    """Collects weights; equal ones of several programs are kept once if it is ``shared``."""

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._values: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def add(self, value: Any) -> int:
        """Return the number of a tensor, which may be new."""
        key = _content(value) if self._shared else id(value)
        if key not in self._numbers:
            self._numbers[key] = len(self._values)
            # Held, so that no other tensor gets its id.
            self._values.append(value)
        return self._numbers[key]

    def write(self, path: Path) -> tuple[Weight, ...]:
        """Write all weights to a file; none, no file."""
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
    """Read weights as tensors of the device they are for."""
    if not entries:
        return []
    content = np.memmap(path, np.uint8, "r")
    return [
        tvm.runtime.tensor(
            content[each.offset : each.offset + each.n_bytes]
            .view(np.dtype(each.dtype))
            .reshape(each.shape),
            device,
        )
        for each in entries
    ]


def _content(value: Any) -> tuple[str, tuple[int, ...], str]:
    array = np.ascontiguousarray(value.numpy())
    digest = hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()
    return digest, tuple(array.shape), str(value.dtype)
