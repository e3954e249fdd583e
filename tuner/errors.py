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


class TunerError(Exception):
    """Base of everything this package raises on purpose."""

    exit_code = 1


class RequestError(TunerError):
    """The caller asked for something that cannot be done; nothing was changed."""

    exit_code = 2


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


def first_line(error: Exception) -> str:
    """Return the first line of an error's text; of what the database said, if it is one of its."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
