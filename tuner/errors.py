"""Errors that users of the tuner see, and their summaries.

TunerError
├── RequestError      the request was wrong: exit status 2
│   ├── ModelError    a model cannot be read or is not supported
│   └── TargetError   a target is unknown or cannot be used on this machine
└── WorkError         the request was right, the work failed: exit status 1
    ├── DeviceBusy    another process measures on this machine
    ├── DiskFull      a measurement cannot write its files
    ├── LinkError     the objects of a network cannot be linked to a library
    ├── MalformedAnswer  a worker returned something else than its function promises
    ├── OutOfMemory   a call needs more memory than its process may have
    └── WorkerLost    a worker process died during a call
        └── DeviceLost  the device of a measurement went offline
            ├── DeviceApart  a device is online, but disagrees with the others of its kind
            └── DeviceFull  a device has no disk space
"""

import errno
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

#: Reasons why a model cannot be used. docs/errors.md lists the cause and the remedy of each.
ModelCode = Literal[
    "arguments-too-large",
    "bad-model",
    "damaged-file",
    "data-dependent-shape",
    "dynamic-program",
    "external-data",
    "importer-crashed",
    "input-shape",
    "invalid-model",
    "loop",
    "misread-operator",
    "no-kernels",
    "no-model",
    "not-a-tensor",
    "not-loaded",
    "not-lowered",
    "out-of-memory",
    "random-operator",
    "random-weights",
    "too-large",
    "too-slow",
    "torch-export",
    "torch-missing",
    "torch-version",
    "training-mode",
    "unknown",
    "unknown-format",
    "unreadable-file",
    "unsupported-operator",
    "zoo-option",
]
#: Code of :class:`LinkError`, in the same list.
LINK_CODE = "not-linked"

_MEMORY_WORDS = (
    "std::bad_alloc",
    "Cannot allocate memory",
    "can't start new thread",
    "Failed to serialize proto",
)
_ERRNO = re.compile(r"^\[Errno -?\d+\] ")
_MAX_REASON_CHARS = 200
# Text that speaks of the source, the values or the checks of a program instead of the model.
_INTERNAL = re.compile(
    r"/|\.(cc|cpp|h|py)\b|::|\b0x[0-9a-f]+|<[^>]* object|metadata\[|__|\b(self|lambda|NoneType)\b"
    r"|\b(R|T|I|ir|tirx?|relax|tvm)\.\w|Check failed|InternalError|Traceback|has no attribute"
    r"|Assert|Metadata omitted|(keyword|positional) argument|not (subscriptable|iterable)"
    r"|unsupported operand type|has no len\(\)|Python scalars|invalid literal for|values to unpack"
    r"|(list|tuple|string) index out of range|recursion depth"
)
# Names in a model may have any length.
_MAX_MODEL_CHARS = 2000


class TunerError(Exception):
    """Base of all errors that this package raises on purpose."""

    exit_code = 1


class RequestError(TunerError):
    """A request that cannot be fulfilled; nothing was changed.

    Attributes:
        field: Name of the wrong option, as :class:`tuner.jobs.spec.TuneSpec` or the REST form has
            it; None if the error is not about one option. A front end that has another name for
            the option replaces it.
        text: Description of the problem, without the field.
    """

    exit_code = 2

    # Errors travel between processes: their reader passes the text alone and sets attributes later.
    def __init__(self, text: str, *, field: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.field = field

    def __str__(self) -> str:
        return self.text if self.field is None else f"{self.field}: {self.text}"


class ModelError(RequestError):
    """A model file that is missing, damaged or not supported.

    Names of a model, which may hold anything, are part of many texts: characters that cannot be
    printed are replaced, and the middle of a long text is left out.

    Attributes:
        code: Stable name of the reason, which ends the text.
    """

    def __init__(
        self, text: str, *, code: ModelCode = "bad-model", field: str | None = None
    ) -> None:
        super().__init__(_one_line(text), field=field)
        self.code = code

    def __str__(self) -> str:
        return f"{super().__str__()} [{self.code}]"


class TargetError(RequestError):
    """A target that is unknown, malformed or not usable on this machine."""


class WorkError(TunerError):
    """A failure of the work on a correct request."""


class DeviceBusy(WorkError):  # noqa: N818  it names an event
    """A device that another process of this machine measures on."""


class OutOfTime(WorkError):  # noqa: N818  it names an event
    """A budget in seconds that ended before the first trial."""

    def __init__(self, secs: float) -> None:
        super().__init__(
            f"the {secs:g} s of the budget ended before the first trial; what was prepared is "
            "kept: run the command again, with more seconds if that repeats"
        )


class DiskFull(WorkError):  # noqa: N818  it names an event
    """A full disk during a measurement, which is not a failure of the candidate."""


class LinkError(WorkError):
    """A network whose library cannot be linked, although it could be split.

    Attributes:
        code: Stable name of the reason, which ends the text.
    """

    code = LINK_CODE

    def __str__(self) -> str:
        return f"{super().__str__()} [{self.code}]"


class MalformedAnswer(WorkError):  # noqa: N818  it names an event
    """A value of a worker that has another type than its function promises."""


class OutOfMemory(WorkError):  # noqa: N818  it names an event
    """A call that needs more memory than its process may have, or than the machine has."""


class WorkerLost(WorkError):  # noqa: N818  it names an event
    """The death of a worker process (killed, crashed, out of memory) during a call.

    Attributes:
        crashed: True if the worker crashed, with a segmentation fault for example, and was not
            killed; the same call would crash the next worker too.
        killed: True if the worker was killed, by the kernel when memory ran out or by a user; the
            same call may succeed in the next worker.
    """

    # Errors travel between processes: their reader passes the message alone.
    def __init__(self, message: str, *, crashed: bool = False, killed: bool = False) -> None:
        super().__init__(message)
        self.crashed = crashed
        self.killed = killed


class DeviceLost(WorkerLost):
    """A device that went offline, at least for now; its calls are lost."""

    def __init__(self, message: str) -> None:
        super().__init__(message, crashed=False)


class DeviceApart(DeviceLost):
    """A device that calibration keeps apart from the others of its kind; it may not measure."""


class DeviceFull(DeviceLost):
    """A device of another machine whose disk is full; no candidate is to blame for its loss."""


def was_killed(error: BaseException | None) -> bool:
    """Return whether an error, or one that it was raised from, is that a worker was killed."""
    while error is not None and not isinstance(error, WorkerLost):
        error = error.__cause__
    return error is not None and error.killed


def install_command(extra: str) -> str:
    """Return how to install an optional dependency, beside a wheel or in a clone."""
    return f"pip install 'subgraph-tuner[{extra}]'"


def summary(
    error: BaseException, *, last: bool = False, prefer: Sequence[str] = (), max_chars: int = 2000
) -> str:
    """Return one line of an error's text, to be part of another message.

    An empty text gives the name of the class. The number of an operating system's error and the
    full stop at the end are left out.

    Args:
        error: Any exception; one of SQLAlchemy gives the text of the database driver.
        last: True for the last line, as below a traceback, instead of the first.
        prefer: Phrases; a line that contains one of them precedes all other lines.
        max_chars: Maximum length of the line.
    """
    text = _ERRNO.sub("", str(getattr(error, "orig", None) or error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    preferred = [line for line in lines if any(phrase in line for phrase in prefer)]
    lines = preferred or lines or [type(error).__name__]
    return lines[-1 if last else 0].removesuffix(".")[:max_chars]


def last_line(text: str | None) -> str:
    """Return the last line of a text that is not blank; empty without one."""
    return (text or "").strip().rpartition("\n")[2].strip()


def plain_reason(error: BaseException) -> str:
    """Return ``: REASON``, the last line of an error's text, to follow what failed.

    It is ``, and the reason is unknown`` where that line is text of a compiler: places in its
    source, its own checks, or its intermediate representation.
    """
    text = summary(error, last=True, max_chars=_MAX_REASON_CHARS + 1)
    # Without a text, the line is the name of the class.
    is_plain = " " in text and len(text) <= _MAX_REASON_CHARS and not _INTERNAL.search(text)
    return f": {text}" if is_plain else ", and the reason is unknown"


@contextmanager
def described(describe: Callable[[str], TunerError]) -> Iterator[None]:
    """Replace an unexpected error that is raised inside; its own text goes to stderr.

    Errors of this package, of the operating system and of exhausted memory pass.

    Args:
        describe: Makes the new error from ``: REASON``, see :func:`plain_reason`.

    Raises:
        TunerError: The result of ``describe``.
    """
    try:
        yield
    except (TunerError, OSError):
        raise
    except Exception as error:
        if lacks_memory(error):
            raise
        traceback.print_exc()
        raise describe(plain_reason(error)) from None


def lacks_memory(error: Exception) -> bool:
    """Return whether memory ran out; libraries in C++ report it in words of their own."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or any(word in str(error) for word in _MEMORY_WORDS)


def error_text(error: BaseException, max_chars: int = 2000) -> str:
    """Return the class of an error and the end of its text, as records store it."""
    return f"{type(error).__name__}: {str(error).strip()[-max_chars:]}"


def _one_line(text: str) -> str:
    text = "".join(char if char.isprintable() else "\ufffd" for char in text)
    if len(text) <= _MAX_MODEL_CHARS:
        return text
    half = _MAX_MODEL_CHARS // 2
    return f"{text[:half]} ... {text[-half:]}"
