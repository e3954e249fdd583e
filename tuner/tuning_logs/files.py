"""Log files as lines: plain or gzip, in bounded memory, whatever bytes are in them."""

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
# What editors of Windows begin a file with.
_BYTE_ORDER_MARK = "\ufeff"
# What reading a gzip file raises if it is none, or not whole.
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)


@dataclass(frozen=True)
class Line:
    """A line of a log.

    Attributes:
        number: From 1.
        text: Without its end; empty if there is a problem.
        problem: Why it is no text.
        torn: Whether the file ends within it.
    """

    number: int
    text: str
    problem: str = ""
    torn: bool = False


@contextmanager
def open_log(file: str) -> Iterator[IO[bytes]]:
    """Open a log, from its beginning; a dash is stdin, which is spooled first as any pipe is.

    Raises:
        RequestError: If it cannot be read.
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
    """Return a copy on disk, which is gone when it is closed."""
    spool = tempfile.TemporaryFile()  # noqa: SIM115  the caller closes it
    try:
        shutil.copyfileobj(stream, spool)
        spool.seek(0)
    except BaseException:
        spool.close()
        raise
    return spool


def read_lines(stream: IO[bytes], most_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
    """Return the lines from where a stream is; those without content or behind a # are left out.

    A line that is longer than ``most_bytes`` is read through and not kept. An archive that was cut
    off ends with a torn line.

    Raises:
        RequestError: If what is packed is damaged.
    """
    number = 0
    while True:
        number += 1
        try:
            content = stream.readline(most_bytes)
        except EOFError:
            yield Line(number, "", torn=True)
            return
        except DAMAGED as error:
            raise RequestError(f"cannot read further than line {number - 1}: {error}") from error
        if not content:
            return
        whole = content.endswith(b"\n")
        if not whole and len(content) == most_bytes:
            _skip_rest(stream, most_bytes)
            yield Line(number, "", f"it is longer than {most_bytes / 2**20:g} MiB")
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
    """A value that was cut off is never JSON, but for a number."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _skip_rest(stream: IO[bytes], n_bytes: int) -> None:
    while (part := stream.readline(n_bytes)) and not part.endswith(b"\n"):
        pass
