"""Processes that hold locks or write files, told apart from those that reuse their ids."""

import os
import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_GONE = ("Z", "X", "x")


@dataclass(frozen=True)
class Owner:
    """A process.

    Attributes:
        host: Name of its machine, for people.
        boot: Which start of which kernel it runs under; empty where that is unknown.
        space: Which namespace its id belongs to: containers count processes each for themselves.
        pid: Its id.
        started: When it started, in ticks since the boot, which no clock setting changes.
    """

    host: str
    boot: str
    space: str
    pid: int
    started: str

    @property
    def tag(self) -> str:
        """The same in few characters, for names of files."""
        return f"{self.boot}.{self.space}.{self.pid}.{self.started}"

    @property
    def is_of_this_kernel(self) -> bool:
        """Whether it runs, or ran, under the kernel that we run under."""
        return bool(self.boot) and self.boot == this_process().boot

    @property
    def is_known_here(self) -> bool:
        """Whether its id means the same to us."""
        return self.is_of_this_kernel and self.space == this_process().space

    @property
    def is_gone(self) -> bool:
        """Whether it is certain that it ended; False where nobody can say."""
        return self.is_known_here and _started(self.pid) != self.started


def owner_of_tag(tag: str) -> Owner | None:
    """Read :attr:`Owner.tag`; None if it is none."""
    parts = tag.split(".")
    if len(parts) != 4 or not parts[2].isdigit():
        return None
    return Owner("", parts[0], parts[1], int(parts[2]), parts[3])


def this_process() -> Owner:
    """Return who we are."""
    return _process(os.getpid())


@lru_cache(maxsize=2)
def _process(pid: int) -> Owner:
    return Owner(platform.node(), _boot(), _space(), pid, _started(pid))


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:16]
    except OSError:
        return ""


def _space() -> str:
    try:
        return "".join(char for char in str(Path("/proc/self/ns/pid").readlink()) if char.isdigit())
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process started; empty if it is gone, or dead and not collected yet."""
    try:
        # The name in parentheses may hold anything, also a parenthesis.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in _GONE else fields[19]
