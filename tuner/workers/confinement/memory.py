"""Limits on the memory of worker processes, as shares of what the cgroup or the machine has."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tuner.settings import Settings

#: Memory that a builder needs which imported its compiler and searches.
MIN_BUILDER_BYTES = 1 << 29
# Stacks of threads count as data though hardly any of their memory is used.
_STACK_BYTES_PER_THREAD = 16 << 20

_PROC = Path("/proc/self")
# Files of a cgroup of version 2.
_LIMIT, _GROUP = "memory.max", "memory.oom.group"


class _Shares(NamedTuple):
    """Shares of the memory that processes may have; one share for all builders together."""

    network: float
    load: float
    runner: float
    builders: float


# Their sum exceeds 1, because processes seldom need most of theirs at once; if they do, the kernel
# kills one of them, and not the coordinator.
_OVERLAPPING = _Shares(network=0.75, load=0.5, runner=0.5, builders=0.75)
# Where the kernel kills the coordinator with them: two loads, the runner and the builders of a
# service, or a network, the runner and the builders of a command, leave it a tenth.
_APART = _Shares(network=0.4, load=0.2, runner=0.2, builders=0.3)


@dataclass(frozen=True)
class MemoryLimits:
    """Memory that each process of a kind may have, bytes.

    Attributes:
        network: Process that holds a whole network: to load, link, profile or compare it.
        load: Process that loads or compiles a model of the service, of which several run at once.
        runner: Process that runs candidates.
        builder: Process that searches, builds, computes references or compiles.
    """

    network: int
    load: int
    runner: int
    builder: int

    @property
    def arguments(self) -> int:
        """Memory that the arguments of a workload and its expected outputs may take."""
        return min(self.builder, self.runner)


def memory_limits(
    settings: Settings, n_bytes: int | None = None, *, together: bool | None = None
) -> MemoryLimits:
    """Return the limits of worker processes; a setting replaces all of them.

    Args:
        settings: The setting, and the largest number of builders that share the memory.
        n_bytes: Memory to share; by default that of the cgroup or the machine.
        together: True if the kernel kills all processes when memory runs out; None to ask it.
    """
    if settings.worker_bytes is not None:
        chosen = settings.worker_bytes
        return MemoryLimits(chosen, chosen, chosen, chosen)
    total = usable_bytes() if n_bytes is None else n_bytes
    together = kills_together() if together is None else together
    shares = _APART if together else _OVERLAPPING
    runner = int(shares.runner * total)
    minimum = 0 if together else min(2 * MIN_BUILDER_BYTES, runner)
    n_builders = builder_count(settings, total, together=together)
    return MemoryLimits(
        network=int(shares.network * total),
        load=int(shares.load * total),
        runner=runner,
        builder=max(int(shares.builders * total) // n_builders, minimum),
    )


def builder_count(
    settings: Settings, n_bytes: int | None = None, *, together: bool | None = None
) -> int:
    """Return the number of builders on this machine, at least 1.

    It is the setting, or one for each core. Where the kernel kills all processes when memory runs
    out, the latter is limited to the builders that their share holds.

    Args:
        settings: The setting; the memory of each process.
        n_bytes: Memory to share; by default that of the cgroup or the machine.
        together: True if the kernel kills all processes when memory runs out; None to ask it.
    """
    if settings.max_builders is not None or settings.worker_bytes is not None:
        return settings.n_builders
    if not (kills_together() if together is None else together):
        return settings.n_builders
    share = int(_APART.builders * (usable_bytes() if n_bytes is None else n_bytes))
    return min(settings.n_builders, max(share // MIN_BUILDER_BYTES, 1))


def data_limit(n_bytes: int, n_threads: int) -> int:
    """Return the limit of a process's data that leaves it ``n_bytes`` beside its threads."""
    return n_bytes + n_threads * _STACK_BYTES_PER_THREAD


def usable_bytes(proc: Path = _PROC) -> int:
    """Return the memory that this process and its children may use together, bytes.

    That is the smallest limit of its cgroup and of those around it, or the memory of the machine.

    Args:
        proc: Folder of the process in ``/proc``.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_cgroup_limits(proc)])


def kills_together(proc: Path = _PROC) -> bool:
    """Return whether the kernel kills all processes of the cgroup when its memory runs out.

    Kubernetes sets that, ``memory.oom.group``, for containers on cgroups of version 2.

    Args:
        proc: Folder of the process in ``/proc``.
    """
    folders = (folder for folder, name in _cgroup_folders(proc) if name == _LIMIT)
    return any(_text(folder / _GROUP) == "1" for folder in folders)


def _cgroup_limits(proc: Path) -> Iterator[int]:
    """Yield the limits of the memory cgroups of a process, as far as they can be read."""
    for folder, name in _cgroup_folders(proc):
        text = _text(folder / name)
        if text.isdigit():
            yield int(text)


def _cgroup_folders(proc: Path) -> Iterator[tuple[Path, str]]:
    """Yield the memory cgroups of a process and of all around them, of version 2 and 1.

    Yields:
        The folder of each, and the name of the file in it that has its limit.
    """
    try:
        mounts = (proc / "mountinfo").read_text().splitlines()
        groups = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return
    paths = {}
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            paths["memory.limit_in_bytes" if controllers else _LIMIT] = path
    for line in mounts:
        mount, _, filesystem = line.partition(" - ")
        *_, root, point, _options = mount.split(" ")[:6]
        kind, _source, options = filesystem.split(" ", 2)
        if kind == "cgroup2":
            name = _LIMIT
        elif kind == "cgroup" and "memory" in options.split(","):
            name = "memory.limit_in_bytes"
        else:
            continue
        below = _below(root, paths.get(name, "/"))
        yield from ((folder, name) for folder in _along(Path(point), below))


def _below(root: str, path: str) -> str:
    """Return a cgroup relative to a mount: a container sees its own cgroup as the root."""
    if root != "/" and path.startswith(root):
        path = path.removeprefix(root)
    return path.strip("/")


def _along(point: Path, path: str) -> Iterator[Path]:
    """Yield the folders of a cgroup and of all around it."""
    folder = point / path
    while folder == point or point in folder.parents:
        yield folder
        folder = folder.parent


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
