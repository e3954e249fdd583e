"""Files and pipes that a command writes completely or not at all."""

import errno
import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from tuner.cli.console import print_line
from tuner.errors import RequestError, WorkError
from tuner.formatting import counted

STANDARD = "-"
_PROGRESS_INTERVAL_SECS = 1.0


class ProgressCounter:
    """Print on stderr, at most once a second, the number of items processed so far.

    Args:
        template: Line to print, with ``{}`` for the number and its noun.
        noun: Noun of one item.
    """

    def __init__(self, template: str, noun: str) -> None:
        self._template = template
        self._noun = noun
        self._next = time.monotonic() + _PROGRESS_INTERVAL_SECS

    def __call__(self, count: int, *_: int) -> None:
        """Report the count."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PROGRESS_INTERVAL_SECS
            print_line(self._template.format(counted(count, self._noun)), to_stderr=True)


class SupportsWrite(Protocol):
    """Stream of text."""

    def write(self, text: str, /) -> int:
        """Write a text; return its number of characters."""


class RecordCounter:
    """Stream that counts the records written to it and prints its progress."""

    def __init__(self, stream: SupportsWrite) -> None:
        self._stream = stream
        self._n_records = 0
        self._progress = ProgressCounter("{} so far", "record")

    def write(self, text: str) -> int:
        """Write one line of a log."""
        # Quotes inside a JSON string are escaped, so a string cannot contain this.
        self._n_records += '"kind":"record"' in text
        self._progress(self._n_records)
        return self._stream.write(text)


@contextmanager
def output(file: str) -> Iterator[IO[str]]:
    """Open stdout, a device, or a file that appears only when it is complete.

    Raises:
        RequestError: If the file cannot be created.
        WorkError: If writing fails; nothing is left behind.
    """
    if file == STANDARD:
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        path, is_replaced = _resolve(Path(file))
        temporary = path
        flags = os.O_WRONLY
        if is_replaced:
            temporary = path.with_name(f".tuner-export-{secrets.token_hex(6)}")
            flags |= os.O_CREAT | os.O_EXCL
        descriptor = os.open(temporary, flags, 0o666)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RequestError(f"cannot write {file}: {reason}") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as stream:
            yield stream
            stream.flush()
            if is_replaced:
                os.fsync(descriptor)
        if is_replaced:
            temporary.replace(path)
    except OSError as error:
        raise WorkError(f"cannot write {file}: {error.strerror}") from error
    finally:
        if is_replaced:
            temporary.unlink(missing_ok=True)


def _resolve(file: Path) -> tuple[Path, bool]:
    """Return the real path of a file, and whether the file is replaced when it is complete.

    A link stays and its destination is replaced; a device or a pipe is written to directly.

    Raises:
        OSError: If the path cannot be written.
        RuntimeError: If links form a loop.
    """
    path = file.resolve()
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return path, path.is_file() or not path.exists()
