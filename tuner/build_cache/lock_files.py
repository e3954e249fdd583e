"""Files that are locks: written whole, known to the kernel, read by whoever waits."""

import contextlib
import errno
import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path

from tuner.build_cache.process_identity import Owner

_COUNT_DIGITS = 20


@dataclass(frozen=True)
class Seen:
    """What a lock file said; ``owner`` is None if it was not readable."""

    owner: Owner | None
    token: str
    count: str
    free: bool | None


def look(path: Path) -> Seen | None:
    """Read a lock file; None if there is none."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError:
        return Seen(None, "", "", free=None)
    try:
        free = try_flock(descriptor, fcntl.LOCK_SH)
        content = os.pread(descriptor, 4096, 0)
    except OSError:
        return Seen(None, "", "", free=None)
    finally:
        os.close(descriptor)
    number, _, text = content.partition(b"\n")
    try:
        raw = json.loads(text)
        token = str(raw.pop("token"))
        return Seen(Owner(**raw), token, number.decode(), free)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Seen(None, "", number.decode(errors="replace"), free)


def try_flock(descriptor: int, kind: int) -> bool | None:
    """Ask for a lock of the kernel's; None where there is none to be had."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def create(path: Path, content: bytes) -> int:
    """Create a file that the kernel knows as locked; return it open."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, content)
    except OSError:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise
    return descriptor


def linked(source: Path, path: Path) -> bool:
    """Give a file its second name; False where the file system cannot.

    Raises:
        FileExistsError: If there is a file of that name.
        OSError: If the folder cannot be written.
    """
    try:
        os.link(source, path)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        return False
    return True


def count(number: int) -> bytes:
    """Write a count, always of the same length: it is replaced where it stands."""
    return f"{number:0{_COUNT_DIGITS}d}".encode()
