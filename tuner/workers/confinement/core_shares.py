"""Shares of the cores of this process."""

import os
from collections.abc import Collection
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")


def cores_of(
    share: float, usable: Collection[int] | None = None, cpus: Path = _CPUS
) -> frozenset[int]:
    """Return the hardware threads of a share, the same for all processes with it.

    They are all threads of whole cores, the last ones: threads of one core disturb each other.

    Args:
        share: Part of the hardware threads, from 0 to 1; it is rounded down to whole cores, and up
            to one.
        usable: Hardware threads to share; by default those of this process.
        cpus: Folder of the CPUs in ``/sys``. Where it says nothing, each thread is a core.

    Returns:
        Numbers of hardware threads; empty for all of them.
    """
    usable = os.sched_getaffinity(0) if usable is None else usable
    # Threads of each core, by their lowest numbers.
    cores: dict[str, list[int]] = {}
    for thread in sorted(usable):
        cores.setdefault(_siblings(thread, cpus), []).append(thread)
    *others, last = list(cores.values())
    chosen = set(last)
    while others and len(chosen) + len(others[-1]) <= share * len(usable):
        chosen.update(others.pop())
    return frozenset(chosen) if others else frozenset()


def _siblings(thread: int, cpus: Path) -> str:
    """Return the text that threads of one core have in common."""
    path = cpus / f"cpu{thread}" / "topology" / "thread_siblings_list"
    try:
        return path.read_text().strip() or str(thread)
    except OSError:
        return str(thread)
