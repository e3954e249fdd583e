"""Turns a writer of text into chunks for an answer, without holding all of it."""

import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import IO, Any, cast

from starlette.concurrency import run_in_threadpool

_CHUNK = 2**18
_AHEAD = 4
_TICK_SECS = 0.5
# Who takes nothing for so long is cut off: a transaction is open meanwhile.
_PATIENCE_SECS = 60.0


class _Gone(Exception):  # noqa: N818  nobody reads any more, which is no error
    pass


class _Chunks:
    """A text stream that hands what is written to a queue of few chunks."""

    def __init__(self) -> None:
        self.queue: queue.Queue[bytes | Exception | None] = queue.Queue(_AHEAD)
        self.gone = threading.Event()
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
        if data:
            self.put(data)

    def put(self, item: bytes | Exception | None) -> None:
        """Hand something on; raises _Gone if nobody takes it."""
        deadline = time.monotonic() + _PATIENCE_SECS
        while not self.gone.is_set() and time.monotonic() < deadline:
            try:
                self.queue.put(item, timeout=_TICK_SECS)
            except queue.Full:
                continue
            return
        self.gone.set()
        raise _Gone

    def run(self, write: Callable[[IO[str]], Any]) -> None:
        """Have a function write to this stream; its end or its error is handed on too."""
        end: Exception | None = None
        try:
            try:
                write(cast("IO[str]", self))
                self.flush()
            except Exception as error:
                end = error
            self.put(end)
        except _Gone:
            return

    def next(self) -> bytes | Exception | None:
        """Return what comes next; empty if nothing did for a moment."""
        try:
            return self.queue.get(timeout=_TICK_SECS)
        except queue.Empty:
            return b""


async def lines_of(write: Callable[[IO[str]], Any]) -> AsyncIterator[bytes]:
    """Yield what a function writes to the stream that it is given, as it is written.

    The function runs in a thread of its own, which ends soon after nobody reads any more.
    """
    chunks = _Chunks()
    threading.Thread(target=chunks.run, args=(write,), name="export", daemon=True).start()
    try:
        while (chunk := await run_in_threadpool(chunks.next)) is not None:
            if isinstance(chunk, Exception):
                raise chunk
            if chunk:
                yield chunk
            elif chunks.gone.is_set():
                raise TimeoutError("the reader of an export took nothing")
    finally:
        chunks.gone.set()
