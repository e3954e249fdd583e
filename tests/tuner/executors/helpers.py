"""Functions for the workers of tests to call by name."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tuner.errors import RequestError
from tuner.workers import worker_process

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


def read_text(path: str) -> str:
    """Read a file, such as one that describes the process."""
    return Path(path).read_text()


def fail(message: str) -> None:
    """Raise an error of Python."""
    raise LookupError(message)


def refuse(message: str) -> None:
    """Raise an error of the tuner."""
    raise RequestError(message)


def hang(secs: float = 600.0, marker: str = "") -> None:
    """Sleep for long, and ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if marker:
        Path(marker).touch()
    time.sleep(secs)


def wait_for_file(path: str) -> str:
    """Wait until a file is made."""
    while not Path(path).exists():
        time.sleep(0.01)
    return "made"


def close_connection() -> None:
    """Close the connection to the pool, and hang."""
    for descriptor in range(3, 100):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.close(descriptor)
    hang()


def run_sleeper(secs: float) -> None:
    """Run a process that sleeps, and wait for its end."""
    subprocess.run([sys.executable, "-c", f"import time; time.sleep({secs})"], check=True)


def die(number: int) -> None:
    """End by a signal; SIGSEGV by a true access violation."""
    if number == signal.SIGSEGV:
        import ctypes

        ctypes.string_at(0)
    signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
    os.kill(os.getpid(), number)
    time.sleep(60)


def leave(status: int) -> None:
    """Exit as a library that calls exit() does."""
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


def unsendable() -> Any:
    """Return a value that is not data."""
    return lambda: None


def identity(value: Any) -> Any:
    """Return the argument."""
    return value


def raise_error(error: Exception) -> None:
    """Raise the argument."""
    raise error


def send_raw(content: bytes, delay_secs: float | None = None) -> int:
    """Write to the connection to the pool, at once and without an end, or after the answer."""

    def write() -> None:
        time.sleep(delay_secs or 0.0)
        for descriptor in range(3, 100):
            with contextlib.suppress(OSError):
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    os.write(descriptor, content)

    if delay_secs is not None:
        threading.Thread(target=write).start()
        return os.getpid()
    write()
    time.sleep(60)
    return 0


def large(n_bytes: int) -> bytes:
    """Return many bytes."""
    return b"x" * n_bytes


def allocate(n_bytes: int) -> int:
    """Allocate bytes, and return their number."""
    return len(b"x" * n_bytes)


def retire() -> int:
    """Return the process id, and serve no other call."""
    worker_process.retire()
    return os.getpid()
