"""Bodies of requests: forms with model files, and logs, which are read while they are sent."""

import io
import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, cast

from tuner.client.models import TuneFields
from tuner.errors import ModelError, RequestError
from tuner.jobs.buckets import GivenSizes, text_of

#: Callback that gets the bytes sent so far and the bytes of all files.
Sent = Callable[[int, int], None]
Part = tuple[str, tuple[Any, ...]]
_CHUNK_BYTES = 1 << 18


class _Counted:
    """A file that reports the bytes read from it."""

    def __init__(self, file: IO[bytes], report: Callable[[int], None]) -> None:
        self._file = file
        self._report = report

    def read(self, size: int = -1) -> bytes:
        chunk = self._file.read(size)
        self._report(len(chunk))
        return chunk

    def fileno(self) -> int:
        return self._file.fileno()


def split_models(models: Sequence[str | Path]) -> tuple[list[Path], list[str]]:
    """Separate model files from names of zoo networks.

    Raises:
        ModelError: If a file is missing, or in a format that services do not accept.
    """
    if not models:
        raise RequestError("name a model: a .onnx file, or zoo:NAME")
    zoo = [str(model) for model in models if str(model).startswith("zoo:")]
    files = [Path(model) for model in models if not str(model).startswith("zoo:")]
    for file in files:
        _check(file)
    return files, zoo


def log_body(log: Iterable[bytes]) -> tuple[Iterable[bytes], dict[str, str]]:
    """Return the content and the headers of an import; a file on disk has its length announced."""
    headers = {"content-type": "application/x-ndjson"}
    if not hasattr(log, "read"):
        return log, headers
    length = _length_of(log)
    if length is not None:
        headers["content-length"] = str(length)
    return _chunks(cast("IO[bytes]", log), length), headers


def _length_of(log: object) -> int | None:
    """Return the bytes from the position of a file on disk to its end; None for other streams."""
    # Wrappers such as GzipFile have the descriptor of a file with another content.
    if not isinstance(log, io.FileIO | io.BufferedReader | io.BufferedRandom):
        return None
    if not isinstance(getattr(log, "raw", log), io.FileIO):
        return None
    status = os.fstat(log.fileno())
    return max(status.st_size - log.tell(), 0) if stat.S_ISREG(status.st_mode) else None


def _chunks(file: IO[bytes], n_bytes: int | None) -> Iterator[bytes]:
    """Read a file to its end, or this many bytes of one that may grow."""
    left = math.inf if n_bytes is None else n_bytes
    while left > 0 and (chunk := file.read(int(min(left, _CHUNK_BYTES)))):
        left -= len(chunk)
        yield chunk


@contextmanager
def form(
    files: Sequence[Path], zoo: Sequence[str], options: TuneFields, sent: Sent | None
) -> Iterator[list[Part]]:
    """Open the parts of a form; files are read while they are sent.

    Raises:
        RequestError: If a file cannot be read, or sets of shapes do not name the same inputs.
    """
    n_total, n_sent = sum(file.stat().st_size for file in files), 0

    def report(n_bytes: int) -> None:
        nonlocal n_sent
        n_sent += n_bytes
        if sent is not None:
            sent(min(n_sent, n_total), n_total)

    with ExitStack() as stack:
        parts: list[Part] = [("zoo", (None, name)) for name in zoo]
        parts += [(name, (None, value)) for name, value in _fields(options)]
        for file in files:
            try:
                opened = stack.enter_context(file.open("rb"))
            except OSError as error:
                raise RequestError(f"cannot read {file}: {error.strerror}") from error
            counted = cast("IO[bytes]", _Counted(opened, report))
            parts.append(("model", (file.name, counted, "application/octet-stream")))
        yield parts


def _fields(options: TuneFields) -> Iterator[tuple[str, str]]:
    """Yield the fields of the form and their texts; options that are None are left out."""
    for name, value in options.items():
        if name == "inputs":
            sets = [value] if isinstance(value, Mapping) else value
            for text in _inputs(cast("Sequence[Mapping[str, Sequence[int]]]", sets)):
                yield "input", text
        elif name == "buckets":
            for key, sizes in cast("Mapping[str, GivenSizes]", value).items():
                yield "bucket", text_of(key, sizes)
        elif name == "masks":
            for key, number in cast("Mapping[str, float]", value).items():
                yield "mask", f"{key}={_text(number)}"
        elif isinstance(value, Mapping):
            for key, number in value.items():
                yield name, f"{key}={_text(number)}" if key else _text(number)
        elif name in ("task", "tag"):
            for text in [value] if isinstance(value, str) else cast("Sequence[str]", value):
                yield name, text
        elif value is not None and value != "":
            yield name, _text(value)


def _inputs(sets: Sequence[Mapping[str, Sequence[int]]]) -> Iterator[str]:
    """Yield the texts of sets of shapes, which a service tells apart by names that occur again.

    Raises:
        RequestError: If several sets do not name the same inputs.
    """
    names = [shapes.keys() for shapes in sets]
    if len(names) > 1 and not (names[0] and all(each == names[0] for each in names)):
        raise RequestError("name the same inputs in every set", field="input")
    for shapes in sets:
        for name, shape in shapes.items():
            yield f"{name}={','.join(map(_text, shape))}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        # Enough digits for any measurement, without the noise of binary fractions.
        return f"{value:.15g}" if math.isfinite(value) else str(value)
    return str(value)


def _check(file: Path) -> None:
    if file.suffix.lower() == ".pt2":
        raise ModelError(
            f"{file} is a pickle, which a service does not load: export the network to ONNX, "
            "or tune it on this machine",
            code="unknown-format",
        )
    if file.is_dir():
        raise ModelError(
            f"{str(file)!r} is a directory: expected a .onnx file, or zoo:NAME", code="no-model"
        )
    if not file.exists():
        raise ModelError(
            f"no such file: {str(file)!r}; a network of the zoo is zoo:NAME", code="no-model"
        )
    if file.suffix.lower() != ".onnx":
        raise ModelError(
            f"cannot tell what {str(file)!r} is from its extension: expected a .onnx file",
            code="unknown-format",
        )
    if not os.access(file, os.R_OK):
        raise ModelError(f"cannot read {str(file)!r}: Permission denied", code="unreadable-file")
    if file.stat().st_size == 0:
        raise ModelError(
            f"{str(file)!r} is empty: export or download the model again", code="damaged-file"
        )
