"""The errors a user of the tuner can meet.

TunerError
├── RequestError      the request was wrong: exit status 2
│   ├── ModelError    a model cannot be read or is not supported
│   └── TargetError   a target is unknown or not usable here
└── WorkError         the request was right, the work failed: exit status 1
    ├── DeviceBusy    another process measures on this machine
    ├── DiskFull      there is no room for what a measurement writes
    ├── OutOfMemory   a worker process may not have the memory it needs
    └── WorkerLost    a worker process died while it held our call
        └── DeviceLost  and the device it measured on is gone too
            └── DeviceApart  or it is there, but disagrees with the others of its kind
"""

import re
from collections.abc import Sequence

_ERRNO = re.compile(r"^\[Errno -?\d+\] ")


class TunerError(Exception):
    """Base of everything this package raises on purpose."""

    exit_code = 1


class RequestError(TunerError):
    """The caller asked for something that cannot be done; nothing was changed.

    Attributes:
        field: Name of the option that is wrong, as :class:`tuner.jobs.spec.TuneSpec` has it; None
            if the error is about no single option. Front ends replace it by their own name.
        text: Description of the problem, without the field.
    """

    exit_code = 2

    # With a default, because errors travel between processes: the message is handed over, and
    # the attributes are set afterwards.
    def __init__(self, text: str, *, field: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.field = field

    def __str__(self) -> str:
        return self.text if self.field is None else f"{self.field}: {self.text}"


class ModelError(RequestError):
    """A model file is missing, damaged, or uses something that is not supported."""


class TargetError(RequestError):
    """A target is unknown, malformed, or this machine cannot serve it."""


class WorkError(TunerError):
    """The work failed although the request was right."""


class DeviceBusy(WorkError):  # noqa: N818  the name says what happened
    """Another process measures on this machine."""


class DiskFull(WorkError):  # noqa: N818  the name says what happened
    """The disk has no room for what a measurement writes, which is no candidate's fault."""


class OutOfMemory(WorkError):  # noqa: N818  the name says what happened
    """A call needs more memory than its process may have, or than there is."""


class WorkerLost(WorkError):  # noqa: N818  the name says what happened
    """A worker process died (killed, crashed, out of memory) while it held a call.

    Attributes:
        crashed: Whether it died of its own fault (a segmentation fault, say) and not because
            somebody killed it; the same call would kill the next worker too.
    """

    # With a default, because errors travel between processes: only the message is handed over.
    def __init__(self, message: str, *, crashed: bool = False) -> None:
        super().__init__(message)
        self.crashed = crashed


class DeviceLost(WorkerLost):
    """A device is gone, for now at least: nobody can measure on it, and calls to it are lost."""

    def __init__(self, message: str) -> None:
        super().__init__(message, crashed=False)


class DeviceApart(DeviceLost):
    """A device is kept apart from the others of its kind: nobody may measure on it, for now."""


def summary(
    error: BaseException, *, last: bool = False, prefer: Sequence[str] = (), max_chars: int = 2000
) -> str:
    """Return one line of an error's text, as a part of another message.

    An empty text gives the name of the class. The number of an operating system's error and the
    full stop at the end are left out.

    Args:
        error: Any exception; of SQLAlchemy's, the text is that of the database driver.
        last: Whether the last line says most, as under a traceback, and not the first.
        prefer: Phrases; lines that contain one come before all others.
        max_chars: Length at which the line is cut.
    """
    text = _ERRNO.sub("", str(getattr(error, "orig", None) or error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    preferred = [line for line in lines if any(phrase in line for phrase in prefer)]
    lines = preferred or lines or [type(error).__name__]
    return lines[-1 if last else 0].removesuffix(".")[:max_chars]


def last_line(text: str | None) -> str:
    """Return the last line of a text that is not blank; empty if there is none."""
    return (text or "").strip().rpartition("\n")[2].strip()


def error_text(error: BaseException, max_chars: int = 2000) -> str:
    """Return the class of an error and the end of its text, as records store it."""
    return f"{type(error).__name__}: {str(error).strip()[-max_chars:]}"
