"""Files that appear whole or not at all, whatever ends their writer."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def atomic_file(path: Path, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path``, which takes its place when it is complete on the disk.

    Several processes may write the same file at once. It has the permissions of ``mode``.

    Raises:
        OSError: If it cannot be written; an existing file is unchanged.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(descriptor)
        temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
