"""File format of saved models: kind, version and checksum, followed by the model's bytes."""

import struct
import zlib

_HEADER = struct.Struct("<4sB16sI")
_MAGIC = b"STCM"
VERSION = 1


def seal(kind: str, body: bytes) -> bytes:
    """Wrap a model's bytes; ``kind`` is at most 16 ASCII characters."""
    return _HEADER.pack(_MAGIC, VERSION, kind.encode("ascii"), zlib.crc32(body)) + body


def unseal(blob: bytes) -> tuple[str, bytes]:
    """Return the kind and the bytes that were sealed.

    Raises:
        ValueError: If the blob is not a saved model, is damaged, or has another version.
    """
    if len(blob) < _HEADER.size or not blob.startswith(_MAGIC):
        raise ValueError(f"not a saved cost model: {len(blob)} bytes starting {blob[:8]!r}")
    _, version, kind, checksum = _HEADER.unpack_from(blob)
    if version != VERSION:
        raise ValueError(f"saved cost model has version {version}, only {VERSION} is supported")
    body = blob[_HEADER.size :]
    if zlib.crc32(body) != checksum:
        raise ValueError(f"saved cost model is damaged: wrong checksum over {len(body)} bytes")
    return kind.rstrip(b"\0").decode("ascii", "replace"), body
