"""Waiting for what another process or thread does."""

import time
from collections.abc import Callable
from typing import TypeVar

import psutil

T = TypeVar("T")


def wait_for(ask: Callable[[], T | None], secs: float = 60.0) -> T:
    """Ask again and again, ever more rarely, until something is true, and return it."""
    deadline, pause = time.monotonic() + secs, 0.01
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"it did not come true in {secs:.0f} s"
        time.sleep(pause)
        pause = min(1.2 * pause, 0.1)
    return answer


def has_ended(process_id: int) -> bool:
    """Return whether a process has ended, though its exit code may not have been read."""
    try:
        return bool(psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
