"""Caches of this machine's CPU, as Linux reports them."""

import os
from functools import lru_cache
from pathlib import Path

from tuner.workers.confinement.environment import MACHINE_CORES

_CPUS = Path("/sys/devices/system/cpu")
# Sizes where Linux reports none, as on many virtual machines with another architecture.
_DEFAULT_PRIVATE_BYTES = 2 * 2**20
_DEFAULT_SHARED_BYTES = 32 * 2**20
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def n_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine_cores() -> int:
    """Return the number of cores that code for this machine runs on.

    A process that may use a part of them compiles for all.
    """
    return int(os.environ.get(MACHINE_CORES, "0")) or n_cores()


@lru_cache(maxsize=1)
def private_bytes(cpus: Path = _CPUS) -> int:
    """Return the size of the second-level cache of a core; at least 2 MiB, as a flush may err."""
    sizes = [size for level, size, _ in _caches(cpus / "cpu0") if level == 2]
    return max([_DEFAULT_PRIVATE_BYTES, *sizes])


@lru_cache(maxsize=1)
def shared_bytes(cpus: Path = _CPUS) -> int:
    """Return the size of the last-level caches that the cores of this process have together.

    Cores of one process read different parts of the weights, so that those of several dies keep
    as much as their caches hold together.
    """
    instances: dict[str, int] = {}
    for core in sorted(os.sched_getaffinity(0)):
        caches = _caches(cpus / f"cpu{core}")
        if caches:
            _, size, shared_by = max(caches)
            instances[shared_by] = size
    return sum(instances.values()) or _DEFAULT_SHARED_BYTES


@lru_cache(maxsize=1)
def has_fast_flush(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether Linux names ``clflushopt`` among the instructions of the CPU."""
    try:
        return "clflushopt" in cpuinfo.read_text().split()
    except OSError:
        return False


def sizes_by_level(cpus: Path = _CPUS) -> dict[int, int]:
    """Return the size of each data cache that a core uses, else typical ones of two levels."""
    sizes = {level: size for level, size, _ in _caches(cpus / "cpu0")}
    if max(sizes, default=0) > 1:
        return sizes
    return {2: _DEFAULT_PRIVATE_BYTES, 3: _DEFAULT_SHARED_BYTES}


def _caches(cpu: Path) -> list[tuple[int, int, str]]:
    """Return level, size and sharing cores of the data caches of a core."""
    caches = []
    for index in sorted((cpu / "cache").glob("index*")):
        try:
            if (index / "type").read_text().strip() == "Instruction":
                continue
            level = int((index / "level").read_text())
            text = (index / "size").read_text().strip()
            size = int(text[:-1]) * _UNITS[text[-1]]
            caches.append((level, size, (index / "shared_cpu_list").read_text().strip()))
        except (OSError, ValueError, LookupError):
            continue
    return caches
