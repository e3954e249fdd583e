"""Form in which a service and the processes of other machines exchange calls, files and answers."""

import base64
import hashlib
import importlib.metadata
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from tuner.build_cache.keys import versions_of
from tuner.engines.base import BuildResult, Engine
from tuner.engines.result_types import result_type
from tuner.errors import RequestError, WorkerLost, WorkError
from tuner.executors import file_transfer
from tuner.workers import messages

#: Functions of an engine that remote devices call, and the one that remote builders do.
FUNCTIONS = ("describe_target", "run", "run_interleaved", "sanitize", "measure_peaks", "build")
#: Folder in the data directory with the files of calls, by their digests: containers share
#: archives.
FOLDER = "archives/remote"
#: Size of the largest answer; all answers of a request are part of one small body.
MAX_ANSWER_BYTES = 640 << 10
# Size of the largest artifact that a builder may send.
_MAX_ARTIFACT_BYTES = 64 << 20
# Files of tuner/ that define what is exchanged; they must be equal on both sides.
_CONTRACT = ("errors.py", "engines/base.py", "executors/file_transfer.py", "workers/messages.py")
# Packages whose versions must be equal where candidates are built.
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "nvidia-cuda-nvrtc", "nvidia-cuda-cccl")


@dataclass(frozen=True)
class SentBuild:
    """A candidate that another machine built: its packed artifact, or the error."""

    content: bytes
    error_text: str = ""


@lru_cache
def release(*, builds: bool = False) -> str:
    """Describe the release of the tuner, by what it exchanges; and of compilers, if it builds."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256(b"".join((root / path).read_bytes() for path in _CONTRACT))
    described = f"{importlib.metadata.version('subgraph-tuner')} ({digest.hexdigest()[:12]})"
    if builds:
        versions = versions_of(*_PACKAGES)
        described += "".join(f", {name} {versions[name]}" for name in _PACKAGES if versions[name])
    return described


def answer_type(function: str) -> Any:
    """Return the type of the answer to a call."""
    return SentBuild if function == "build" else result_type(function)


def encode_arguments(args: tuple[Any, ...]) -> bytes:
    """Return the arguments of a call."""
    return msgspec.msgpack.encode(args)


def decode_arguments(function: str, content: bytes) -> tuple[Any, ...]:
    """Return the arguments of a function.

    Raises:
        RequestError: If no such function may be called, or its arguments have other types.
    """
    if function not in FUNCTIONS:
        raise RequestError(f"the service asked for {function!r}, which no device does")
    hints = get_type_hints(Engine.__dict__[function])
    kinds = tuple(kind for name, kind in hints.items() if name != "return")
    try:
        arguments: tuple[Any, ...] = msgspec.msgpack.decode(content, type=tuple[kinds])  # type: ignore[valid-type]
    except msgspec.MsgspecError as error:
        raise RequestError(f"the service sent other arguments of {function}: {error}") from error
    return arguments


def encode_answer(value: Any) -> bytes:
    """Return an answer; one that is too large becomes an error."""
    answer = messages.encode(value)
    if len(answer) <= MAX_ANSWER_BYTES:
        return answer
    text = f"the answer has {len(answer)} bytes"
    # The service builds such a candidate itself.
    kind = WorkerLost if isinstance(value, SentBuild) else WorkError
    return messages.encode_error(kind(text))


def pack_build(result: BuildResult) -> SentBuild:
    """Return the result of a build with its artifact.

    Raises:
        OSError: If the artifact cannot be read.
    """
    if result.error_text:
        return SentBuild(b"", result.error_text)
    return SentBuild(zlib.compress(pack(Path(result.artifact)), 1))


def unpack_build(sent: SentBuild, out: Path) -> BuildResult:
    """Write the artifact of a build in place of an empty folder.

    Raises:
        WorkerLost: If it is malformed.
        OSError: If it cannot be written.
    """
    if sent.error_text:
        return BuildResult("", sent.error_text)
    unpacked = zlib.decompressobj()
    out.rmdir()
    try:
        unpack(unpacked.decompress(sent.content, _MAX_ARTIFACT_BYTES), out)
    except (zlib.error, msgspec.MsgspecError, ValueError) as error:
        raise WorkerLost(f"a builder sent a malformed artifact: {error}") from error
    return BuildResult(str(out))


def pack(path: Path) -> bytes:
    """Return a file, or the files of a folder, as one file.

    Raises:
        OSError: If it cannot be read.
    """
    content = file_transfer.pack(path) if path.is_dir() else path.read_bytes()
    return msgspec.msgpack.encode(content)


def unpack(content: bytes, path: Path) -> None:
    """Write what :func:`pack` packed.

    Raises:
        OSError: If it cannot be written.
        ValueError: If it is malformed, or has a file outside of its folder.
    """
    file_transfer.unpack(msgspec.msgpack.decode(content, type=dict[str, bytes] | bytes), path)


def text_of(content: bytes) -> str:
    """Return bytes as JSON has them."""
    return base64.b64encode(content).decode()


def bytes_of(text: str) -> bytes:
    """Return the bytes of a text in JSON.

    Raises:
        ValueError: If it is malformed.
    """
    return base64.b64decode(text, validate=True)
