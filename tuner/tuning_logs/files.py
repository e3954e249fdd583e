"""Lines of log files, plain or gzip, in bounded memory, with any content."""

import gzip
import json
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from tuner.errors import RequestError

STANDARD = "-"
MAX_LINE_BYTES = 64 * 2**20
_GZIP = b"\x1f\x8b"
# Editors on Windows begin a file with this mark.
_BYTE_ORDER_MARK = "\ufeff"
# Exceptions of a gzip file that is damaged or incomplete.
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)


@dataclass(frozen=True)
class Line:
    """A line of a log.

    Attributes:
        number: Line number, from 1.
        text: Text without the newline; empty if there is a problem.
        problem: Reason why the line cannot be read; empty if it can.
        torn: True if the file ends within the line.
    """

    number: int
    text: str
    problem: str = ""
    torn: bool = False


@contextmanager
def open_log(file: str) -> Iterator[IO[bytes]]:
    """Open a log; a dash is stdin, which is copied to disk first, like every pipe.

    Raises:
        RequestError: If the file cannot be read.
    """
    with _open_seekable(file) as stream:
        packed = stream.read(len(_GZIP)) == _GZIP
        stream.seek(0)
        yield cast("IO[bytes]", gzip.GzipFile(fileobj=stream)) if packed else stream


def _open_seekable(file: str) -> IO[bytes]:
    try:
        if file == STANDARD:
            return _spooled(sys.stdin.buffer)
        stream = Path(file).open("rb")  # noqa: SIM115  the caller closes it
        if stream.seekable():
            return stream
        with stream:
            return _spooled(stream)
    except OSError as error:
        raise RequestError(f"cannot read {file}: {error.strerror}") from error


def _spooled(stream: IO[bytes]) -> IO[bytes]:
    """Return a copy on disk, which is deleted when it is closed."""
    spool = tempfile.TemporaryFile()  # noqa: SIM115  the caller closes it
    try:
        shutil.copyfileobj(stream, spool)
        spool.seek(0)
    except BaseException:
        spool.close()
        raise
    return spool


def read_lines(stream: IO[bytes], max_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
    """Yield the remaining lines of a stream, without blank lines and comments that begin with #.

    A line that is longer than ``max_bytes`` is skipped and reported. An archive that was cut off
    ends with a torn line.

    Raises:
        RequestError: If the archive is damaged.
    """
    number = 0
    while True:
        number += 1
        try:
            content = stream.readline(max_bytes)
        except EOFError:
            yield Line(number, "", torn=True)
            return
        except DAMAGED as error:
            raise RequestError(f"cannot read further than line {number - 1}: {error}") from error
        if not content:
            return
        whole = content.endswith(b"\n")
        if not whole and len(content) == max_bytes:
            while (part := stream.readline(max_bytes)) and not part.endswith(b"\n"):
                pass
            yield Line(number, "", f"it is longer than {max_bytes / 2**20:g} MiB")
        elif content.strip() and not content.startswith(b"#"):
            yield _line(number, content, whole=whole)


def _line(number: int, content: bytes, *, whole: bool) -> Line:
    try:
        text = content.decode().rstrip("\r\n").removeprefix(_BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        problem = f"it is not UTF-8: {error.reason}"
        return Line(number, "", problem, torn=not whole)
    return Line(number, text, torn=not whole and not _is_json(text))


def _is_json(text: str) -> bool:
    """Return whether a text is JSON; a truncated value is not, unless it is a number."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
