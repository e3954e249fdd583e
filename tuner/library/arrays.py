"""Files of arrays by name, between the processes that run networks."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

Array = np.ndarray[Any, Any]


def write_arrays(path: str | Path, arrays: Mapping[str, Array]) -> None:
    """Write a ``.npz`` file; unlike numpy.savez, it takes any name, ``file`` for example."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asanyarray(array), allow_pickle=False)


def read_arrays(source: str | Path | IO[bytes], max_bytes: int | None = None) -> dict[str, Array]:
    """Read a ``.npz`` file, in the order in which it was written.

    Args:
        source: Its path, or the file itself.
        max_bytes: Limit on what it unpacks to; None for none.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it holds a single array or other objects than arrays of numbers, or unpacks
            to more.
        zipfile.BadZipFile: If it is cut off.
    """
    stored = np.load(source, allow_pickle=False)
    if not isinstance(stored, np.lib.npyio.NpzFile):
        raise ValueError("one array without a name")
    with stored:
        files = stored.zip.infolist() if stored.zip else []
        if max_bytes is not None and sum(file.file_size for file in files) > max_bytes:
            raise ValueError(f"the arrays need more than {max_bytes} bytes")
        return {name: _readable(stored[name]) for name in stored.files}


def _readable(array: Array) -> Array:
    """Restore bfloat16, which NumPy stores as two bytes without a type."""
    if array.dtype != np.dtype("V2"):
        return array
    import ml_dtypes

    return array.view(ml_dtypes.bfloat16)
