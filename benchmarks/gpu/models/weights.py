"""Encoding of the weights of a flight, which have few levels, for LZMA to find equal parts in.

LZMA finds matches by hashes of four bytes, and four bytes are only two numbers of float16.
"""

from collections.abc import Iterator

import numpy as np

_CHUNK = 1 << 15
_MAX_LEVELS = 16


def encode(data: bytes) -> bytes:
    """Replace each number of 16 bits by four bits where a chunk has at most 16 different ones."""
    n_whole = len(data) // (2 * _CHUNK)
    numbers = np.frombuffer(data, np.uint16, n_whole * _CHUNK).reshape(n_whole, _CHUNK)
    codes = np.zeros(1 << 16, np.uint8)
    parts = []
    for chunk in numbers:
        levels = np.flatnonzero(np.bincount(chunk, minlength=1 << 16)).astype(np.uint16)
        if len(levels) > _MAX_LEVELS:
            parts += [b"\0", chunk.tobytes()]
            continue
        codes[levels] = np.arange(len(levels))
        coded = codes[chunk]
        parts += [bytes([len(levels)]), levels.tobytes(), (coded[::2] | coded[1::2] << 4).tobytes()]
    return b"".join([n_whole.to_bytes(8, "little"), *parts, data[n_whole * 2 * _CHUNK :]])


def decode(data: bytes) -> bytes:
    """Return what was encoded."""
    return b"".join(_decoded(memoryview(data)))


def _decoded(data: memoryview) -> Iterator[bytes]:
    at = 8
    for _ in range(int.from_bytes(data[:at], "little")):
        n_levels = data[at]
        levels = np.frombuffer(data, np.uint16, n_levels, at + 1)
        at += 1 + 2 * n_levels
        if n_levels == 0:
            n_bytes = 2 * _CHUNK
            yield bytes(data[at : at + n_bytes])
        else:
            n_bytes = _CHUNK // 2
            pairs = np.frombuffer(data, np.uint8, n_bytes, at)
            yield levels[np.stack([pairs & 15, pairs >> 4], 1)].tobytes()
        at += n_bytes
    yield bytes(data[at:])
