"""Turns a writer of text into chunks for an answer, without holding all of it."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any, cast

_CHUNK = 2**18
_AHEAD = 4
_PATIENCE_SECS = 120.0


class _Gone(Exception):  # noqa: N818  nobody reads any more, which is no error
    pass


class _Chunks:
    """A text stream that hands what is written to a queue of few chunks."""

    def __init__(self, chunks: "queue.Queue[bytes | None]", gone: threading.Event) -> None:
        self._chunks, self._gone = chunks, gone
        self._parts: list[str] = []
        self._n_chars = 0

    def write(self, text: str) -> int:
        """Take text, and wait while the reader is behind."""
        self._parts.append(text)
        self._n_chars += len(text)
        if self._n_chars >= _CHUNK:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Hand on what was taken."""
        data = "".join(self._parts).encode()
        self._parts, self._n_chars = [], 0
        while data:
            if self._gone.is_set():
                raise _Gone
            try:
                self._chunks.put(data, timeout=0.5)
                return
            except queue.Full:
                continue


def lines_of(write: Callable[[IO[str]], Any]) -> Iterator[bytes]:
    """Yield what a function writes to the stream that it is given, as it is written.

    The function runs in a thread of its own, and stops when nobody reads any more.
    """
    chunks: queue.Queue[bytes | None] = queue.Queue(_AHEAD)
    gone = threading.Event()
    failed: list[Exception] = []

    def run() -> None:
        stream = _Chunks(chunks, gone)
        try:
            write(cast("IO[str]", stream))
            stream.flush()
        except _Gone:
            return
        except Exception as error:
            failed.append(error)
        while not gone.is_set():
            try:
                chunks.put(None, timeout=0.5)
                return
            except queue.Full:
                continue

    thread = threading.Thread(target=run, name="export", daemon=True)
    thread.start()
    try:
        while (chunk := chunks.get(timeout=_PATIENCE_SECS)) is not None:
            yield chunk
        if failed:
            raise failed[0]
    finally:
        gone.set()
        thread.join()
