"""Functions that a worker of these tests is asked to call; importable by name."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tuner.errors import RequestError
from tuner.workers import process

NAME = "tests.tuner.executors.helpers"

_calls = 0


def add(left: int, right: int) -> int:
    """Add."""
    return left + right


def whoami() -> int:
    """Return the process id."""
    return os.getpid()


def count() -> int:
    """Count the calls that this process has served."""
    global _calls  # noqa: PLW0603  a warm process is what is tested
    _calls += 1
    return _calls


def environ(name: str) -> str | None:
    """Read a variable."""
    return os.environ.get(name)


def fail(message: str) -> None:
    """Raise what a caller can tell apart."""
    raise LookupError(message)


def refuse(message: str) -> None:
    """Raise an error of ours."""
    raise RequestError(message)


def hang(secs: float = 600.0) -> None:
    """Do nothing for long, and refuse to end when asked to."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(secs)


def die(number: int) -> None:
    """End by a signal; SIGSEGV by a true access violation."""
    if number == signal.SIGSEGV:
        import ctypes

        ctypes.string_at(0)
    signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
    os.kill(os.getpid(), number)
    time.sleep(60)


def leave(status: int) -> None:
    """Exit as a library that calls exit() would."""
    os._exit(status)


def die_once(marker: str) -> str:
    """Die by SIGKILL the first time, answer the second."""
    path = Path(marker)
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def chatter(text: str) -> None:
    """Print as Python, as a C library and as a child process."""
    print(f"python {text}")
    print(f"error {text}", file=sys.stderr)
    sys.stdout.flush()
    os.write(1, f"descriptor {text}\n".encode())
    subprocess.run(["echo", f"child {text}"], check=True)


def unpicklable() -> Any:
    """Return what cannot travel."""
    return lambda: None


def unreadable() -> Any:
    """Return what travels, and cannot be read where it arrives."""
    return _Unreadable()


class _Unreadable:
    """Something whose reading raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (int, ("no number",))


def large(n_bytes: int) -> bytes:
    """Return many bytes."""
    return b"x" * n_bytes


def allocate(n_bytes: int) -> int:
    """Fill so much memory."""
    return len(b"x" * n_bytes)


def retire() -> int:
    """Answer this call, and serve no other."""
    process.retire()
    return os.getpid()
