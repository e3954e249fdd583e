"""Tags of processes in the names of temporary files, which show whether their writer has ended."""

import os
import time
from functools import lru_cache
from pathlib import Path

# Age at which files of processes that may have ended, such as on other hosts, are left over.
_FOREIGN_MAX_AGE_SECS = 24 * 3600.0
_DEAD_STATES = ("Z", "X", "x")


def process_tag() -> str:
    """Return a name that no other process has, without a separator of paths.

    It is made of the boot of the kernel, the namespace of process ids (a container has its own),
    the id, and the start of the process in clock ticks since the boot.
    """
    return _tag(os.getpid())


def has_ended(tag: str) -> bool | None:
    """Return whether the process of a tag has ended; None if that cannot be known here."""
    parts = tag.split(".")
    if len(parts) != 4 or not parts[2].isdigit():
        return None
    boot, namespace, pid, started = parts
    if not boot or (boot, namespace) != (_boot(), _namespace()):
        return None
    return _started(int(pid)) != started


def is_left(path: Path) -> bool:
    """Return whether a file's name begins with the tag of a process that ended, or may have."""
    ended = has_ended(".".join(path.name.split(".")[:4]))
    if ended is not None:
        return ended
    try:
        return path.lstat().st_mtime < time.time() - _FOREIGN_MAX_AGE_SECS
    except OSError:
        return False


@lru_cache(maxsize=2)
def _tag(pid: int) -> str:
    return f"{_boot()}.{_namespace()}.{pid}.{_started(pid)}"


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:16]
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return "".join(char for char in str(Path("/proc/self/ns/pid").readlink()) if char.isdigit())
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process started; empty if it has ended, collected by its parent or not."""
    try:
        # The name in parentheses may hold anything, also a parenthesis.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in _DEAD_STATES else fields[19]
