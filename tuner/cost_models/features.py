"""Conversion of feature arrays to bytes for the database and to one matrix for a model."""

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tuner.cost_models.base import Features, Ints

_HEADER = struct.Struct("<2sHH")
_MAGIC = b"F1"


class Stores(NamedTuple):
    """The stores of many candidates as one matrix."""

    rows: npt.NDArray[np.float32]
    """Shape (n_rows, width), finite."""
    starts: Ints
    """First row of each candidate, shape (n_candidates,)."""
    counts: Ints
    """Number of rows of each candidate, at least 1, shape (n_candidates,)."""


def pack(features: npt.NDArray[np.float32]) -> bytes:
    """Compress one candidate's features without loss, to about 200 bytes per store.

    Raises:
        ValueError: If ``features`` is not a two-dimensional float32 array, or has a side
            above 65535.
    """
    if features.ndim != 2 or features.dtype != np.float32:
        raise ValueError(f"features must be 2-D float32, got {features.ndim}-D {features.dtype}")
    if max(features.shape) > 0xFFFF:
        raise ValueError(f"features of shape {features.shape} have a side above 65535")
    body = zlib.compress(features.astype("<f4").tobytes())
    return _HEADER.pack(_MAGIC, *features.shape) + body


def unpack(blob: bytes) -> npt.NDArray[np.float32]:
    """Return the features in a blob of `pack`.

    Raises:
        ValueError: If ``blob`` is not a complete, undamaged result of `pack`.
    """
    if len(blob) < _HEADER.size or not blob.startswith(_MAGIC):
        raise ValueError(f"not packed features: {len(blob)} bytes starting {blob[:8]!r}")
    _, n_stores, width = _HEADER.unpack_from(blob)
    n_bytes = 4 * n_stores * width
    inflater = zlib.decompressobj()
    try:
        # The bound keeps a damaged header from allocating all memory.
        body = inflater.decompress(blob[_HEADER.size :], n_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"packed features are damaged: {error}") from error
    if len(body) != n_bytes or not inflater.eof or inflater.unused_data:
        raise ValueError(f"packed features are damaged: not {n_stores} x {width} float32 values")
    return np.frombuffer(body, "<f4").reshape(n_stores, width).astype(np.float32)


def stack(features: Sequence[Features]) -> Stores:
    """Stack the stores of all candidates in one float32 matrix, with NaN and infinity replaced.

    Raises:
        ValueError: If an array is not two-dimensional, is empty, or differs in width.
    """
    for i, array in enumerate(features):
        if array.ndim != 2 or not array.size or array.shape[1] != features[0].shape[1]:
            raise ValueError(
                f"candidate {i} has features of shape {array.shape}, "
                f"candidate 0 of shape {features[0].shape}: expected (n_stores >= 1, width)"
            )
    counts = np.array([len(array) for array in features], np.int64)
    starts = np.cumsum(counts) - counts
    rows = np.concatenate(features, dtype=np.float32) if features else np.empty((0, 0), np.float32)
    return Stores(np.nan_to_num(rows, copy=False), starts, counts)
