"""Messages of worker processes, which cannot make their reader execute anything.

A message is its size and MessagePack: the answer of a call, or the error that it raised. A worker
may run code that it should not, so that its reader expects a type, builds nothing else, and takes
no more bytes than a call may answer with. Requests go to workers, which trust their senders: they
are pickles.
"""

import builtins
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, cast, get_args

import msgspec

from tuner import errors
from tuner.errors import (
    MalformedAnswer,
    ModelCode,
    ModelError,
    RequestError,
    TunerError,
    WorkerLost,
    WorkError,
)

# An answer with structure, and one that is only bytes, such as the arrays of a reference.
MAX_ANSWER_BYTES = 64 << 20
MAX_BLOB_BYTES = (1 << 32) - 1
_SIZE = struct.Struct(">Q")
_CHUNK_BYTES = 1 << 20

_ERRORS: dict[str, type[Exception]] = {
    name: kind
    for module in (errors, builtins)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, TunerError | OSError)
}


class GarbageError(Exception):
    """A message that no worker of the tuner sends."""


class _Failure(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """An error of a call: its class, its text, and the attributes that classes have."""

    kind: str
    text: str
    field: str | None = None
    code: str | None = None
    crashed: bool = False
    number: int | None = None
    path: str | None = None


class _Answer(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The value of a call, or its error."""

    value: msgspec.Raw
    failure: _Failure | None


def max_bytes(returns: Any) -> int:
    """Return the size of the largest answer of a type."""
    return MAX_BLOB_BYTES if returns is bytes else MAX_ANSWER_BYTES


def encode(value: Any) -> bytes:
    """Return the answer of a call.

    Raises:
        TypeError, ValueError: If the value is not data.
    """
    return _ENCODER.encode((value, None))


def encode_error(error: TunerError | OSError) -> bytes:
    """Return the answer of a call that raised an error."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    failure = _Failure(next(name for name in kinds if name in _ERRORS), "")
    if isinstance(error, OSError) and error.errno is not None:
        failure.number, failure.text = error.errno, _sendable(error.strerror)
        failure.path = None if error.filename is None else _sendable(error.filename)
    else:
        failure.text = _sendable(error.args[0] if error.args else "")
    if isinstance(error, RequestError):
        failure.field = error.field
    if isinstance(error, ModelError):
        failure.code = error.code
    if isinstance(error, WorkerLost):
        failure.crashed = error.crashed
    return _ENCODER.encode((None, failure))


def decode(message: bytes, returns: Any) -> Any:
    """Return the value of an answer.

    Raises:
        TunerError, OSError: The error of the call; MalformedAnswer if its value has another type.
        GarbageError: If the message is not an answer.
    """
    try:
        answer = _decoder(_Answer).decode(message)
    except Exception as error:
        raise GarbageError(_first_line(error)) from error
    if answer.failure is not None:
        raise _raised(answer.failure)
    try:
        return _decoder(returns).decode(answer.value)
    except Exception as error:
        raise _malformed(returns, error) from error


def convert(value: Any, returns: Any) -> Any:
    """Return plain data as a value of a type.

    Raises:
        MalformedAnswer: If it is something else.
    """
    try:
        return msgspec.convert(value, returns)
    except Exception as error:
        raise _malformed(returns, error) from error


def send(stream: socket.socket, message: bytes) -> None:
    """Send a message.

    Raises:
        OSError: If the connection broke.
    """
    stream.sendall(_SIZE.pack(len(message)))
    stream.sendall(message)


def receive(stream: socket.socket, limit: int = MAX_BLOB_BYTES) -> bytes | None:
    """Wait for a message; return None if the sender ended.

    Raises:
        GarbageError: If it has more bytes than the limit.
        OSError: If the connection broke.
    """
    reader = Reader()
    while True:
        chunk = stream.recv(min(_CHUNK_BYTES, reader.n_missing))
        if not chunk:
            return None
        message = reader.add(chunk, limit)
        if message is not None:
            return message


class Reader:
    """The message that arrives from a process, in parts; memory grows with what has arrived."""

    def __init__(self) -> None:
        self._content = bytearray()

    @property
    def n_missing(self) -> int:
        """Bytes to the end of the message, or of its size while that is not known."""
        if len(self._content) < _SIZE.size:
            return _SIZE.size - len(self._content)
        return _SIZE.size + self._size - len(self._content)

    def add(self, chunk: bytes, limit: int) -> bytes | None:
        """Add what has arrived; return the message when it is complete.

        Raises:
            GarbageError: If the message is larger than the limit, or more follows it.
        """
        self._content += chunk
        if len(self._content) < _SIZE.size:
            return None
        if self._size > limit:
            raise GarbageError(f"a message of {self._size} bytes, where {limit} are allowed")
        if self.n_missing < 0:
            raise GarbageError("two messages at once")
        if self.n_missing:
            return None
        message = bytes(memoryview(self._content)[_SIZE.size :])
        self._content = bytearray()
        return message

    @property
    def _size(self) -> int:
        (size,) = _SIZE.unpack_from(self._content)
        return int(size)


def framed(message: bytes) -> bytes:
    """Return a message with its size before it."""
    return _SIZE.pack(len(message)) + message


def _plain(value: Any) -> Any:
    """Return data of a type that MessagePack does not know, such as numpy's numbers, as plain."""
    if hasattr(value, "item"):
        return value.item()
    for kind, as_plain in _EXTENDED:
        if isinstance(value, kind):
            return as_plain(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not data")


# Base classes of an engine's objects.
_EXTENDED: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (bytes, bytes),
    (float, float),
    (int, int),
)
_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)


@lru_cache(1000)
def _decoder(returns: Any) -> "msgspec.msgpack.Decoder[Any]":
    return msgspec.msgpack.Decoder(returns)


def _raised(failure: _Failure) -> Exception:
    """Return the error of a call; WorkError for one that the tuner does not know."""
    kind = _ERRORS.get(failure.kind, WorkError)
    if issubclass(kind, OSError):
        if failure.number is None:
            return kind(failure.text)
        return OSError(failure.number, failure.text, failure.path)
    error = kind(failure.text)
    if isinstance(error, RequestError):
        error.field = failure.field
    if isinstance(error, ModelError) and failure.code in get_args(ModelCode):
        error.code = cast("ModelCode", failure.code)
    if isinstance(error, WorkerLost):
        error.crashed = failure.crashed
    return error


def _sendable(text: object) -> str:
    """Return a text without what is not Unicode, such as bytes of a file's name."""
    return str(text).encode(errors="backslashreplace").decode()


def _malformed(returns: Any, error: Exception) -> MalformedAnswer:
    name = returns.__name__ if isinstance(returns, type) else str(returns).replace("typing.", "")
    return MalformedAnswer(f"the worker did not return {name}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500].partition("\n")[0]
