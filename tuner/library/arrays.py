"""Files of arrays by name, between the processes that run networks."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def write_arrays(path: str | Path, arrays: Mapping[str, Array]) -> None:
    """Write a ``.npz`` file; unlike numpy.savez, it takes any name, ``file`` for example."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asanyarray(array), allow_pickle=False)


def read_arrays(path: str | Path) -> dict[str, Array]:
    """Read a ``.npz`` file, in the order in which it was written.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it holds a single array or other objects than arrays of numbers.
        zipfile.BadZipFile: If it is cut off.
    """
    stored = np.load(path, allow_pickle=False)
    if not isinstance(stored, np.lib.npyio.NpzFile):
        raise ValueError("one array without a name")
    with stored:
        return {name: _readable(stored[name]) for name in stored.files}


def _readable(array: Array) -> Array:
    """Restore bfloat16, which NumPy stores as two bytes without a type."""
    if array.dtype != np.dtype("V2"):
        return array
    import ml_dtypes

    return array.view(ml_dtypes.bfloat16)
