"""The weights file of a library."""

from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tuner.engines.relax.codegen.weights import WeightPool, load_weights

ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "first": np.arange(64, dtype=np.float32),
    "equal": np.arange(64, dtype=np.float32),
    "end differs": np.concatenate([np.arange(1000), [0]]).astype(np.float32),
    "in its end": np.concatenate([np.arange(1000), [1]]).astype(np.float32),
    "shape": np.arange(64, dtype=np.float32).reshape(8, 8),
    "dtype": np.arange(64, dtype=np.float32).view(np.int32),
    "zero": np.zeros(4, np.float32),
    "minus zero": -np.zeros(4, np.float32),
    "scalar": np.array(1, np.float16),
    "nothing": np.zeros((0, 3), np.int8),
}


def test_equal_weights_are_kept_once_and_no_others(tmp_path: Path) -> None:
    """Equal bytes are stored and loaded once, and each shape and dtype is restored unchanged."""
    pool = WeightPool()

    numbers = [pool.add(tvm.runtime.tensor(array)) for array in ARRAYS.values()]
    entries = pool.write(tmp_path / "weights.bin")
    loaded = load_weights(tmp_path / "weights.bin", entries, tvm.cpu())

    assert numbers == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    for number, array in zip(numbers, ARRAYS.values(), strict=True):
        returned = loaded[number].numpy()
        assert (returned.shape, returned.dtype) == (array.shape, array.dtype)
        assert returned.tobytes() == array.tobytes()
    same = [number for number, entry in enumerate(entries) if entry.offset == 0]
    assert same == [0, 3, 4]
    assert len({np.from_dlpack(loaded[number]).ctypes.data for number in same}) == 1
    assert len({entry.offset for entry in entries}) == len(entries) - 2
