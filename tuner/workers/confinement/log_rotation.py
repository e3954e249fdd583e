"""Rotation of the logs of worker processes, which append to them for as long as they run."""

import contextlib
import os
import shutil
from pathlib import Path

DEFAULT_MAX_BYTES = 10 * 2**20
N_KEPT = 4


def rotate(log: Path, max_bytes: int) -> bool:
    """Move the content of a log that is too long to ``LOG.1``, and older ones up to ``LOG.4``.

    The file itself stays, because processes have it open; what they append while it is copied may
    be lost. A longer log keeps its last ``max_bytes`` bytes.

    Returns:
        Whether it was too long.
    """
    try:
        n_bytes = log.stat().st_size
    except OSError:
        return False
    if n_bytes <= max_bytes:
        return False
    try:
        partial = _older(log, 0)
        with log.open("rb") as stream, partial.open("wb") as copy:
            stream.seek(n_bytes - max_bytes)
            shutil.copyfileobj(stream, copy)
        for number in range(N_KEPT - 1, -1, -1):
            with contextlib.suppress(FileNotFoundError):
                _older(log, number).replace(_older(log, number + 1))
    except OSError:
        # A full disk has room again once the log is cut.
        with contextlib.suppress(OSError):
            _older(log, 0).unlink()
    with contextlib.suppress(OSError):
        os.truncate(log, 0)
    return True


def _older(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")
