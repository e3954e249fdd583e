"""Files and pipes that a command writes whole."""

import errno
import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tuner.cli.console import print_line
from tuner.errors import RequestError, WorkError

STANDARD = "-"
_REPORT_SECS = 1.0


class RecordCounter:
    """A stream that tells stderr, now and then, how many records went through it."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._n_records = 0
        self._next = time.monotonic() + _REPORT_SECS

    def write(self, text: str) -> int:
        """Write one line of a log."""
        # Quotes inside a JSON string are escaped, so this is never part of one.
        self._n_records += '"kind":"record"' in text
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _REPORT_SECS
            print_line(f"{self._n_records} records so far", to_stderr=True)
        return self._stream.write(text)


@contextmanager
def output(file: str) -> Iterator[IO[str]]:
    """Open what an export writes: stdout, a device, or a file that appears when it is whole.

    Raises:
        RequestError: If there can be no such file.
        WorkError: If writing fails on the way; nothing is left behind.
    """
    if file == STANDARD:
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        path, whole = _place(Path(file))
        beside = path.with_name(f".tuner-export-{secrets.token_hex(6)}") if whole else path
        descriptor = os.open(beside, os.O_WRONLY | (os.O_CREAT | os.O_EXCL if whole else 0), 0o666)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RequestError(f"cannot write {file}: {reason}") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as stream:
            yield stream
            stream.flush()
            if whole:
                os.fsync(descriptor)
        if whole:
            beside.replace(path)
    except OSError as error:
        raise WorkError(f"cannot write {file}: {error.strerror}") from error
    finally:
        if whole:
            beside.unlink(missing_ok=True)


def _place(file: Path) -> tuple[Path, bool]:
    """Return where a file really is, and whether to replace it as a whole.

    A link stays, and what it names is replaced; a device or a pipe is written to.

    Raises:
        OSError: If it cannot be written.
        RuntimeError: If links run in a circle.
    """
    path = file.resolve()
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return path, path.is_file() or not path.exists()
