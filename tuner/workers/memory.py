"""Limits on the memory of worker processes, as shares of what the cgroup or the machine has."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tuner.settings import Settings

# Shares of the memory that may be used. Their sum exceeds 1, because processes seldom need most
# of theirs at once; if they do, the kernel kills one of them, and not the coordinator.
_NETWORK_SHARE = 0.75
_LOAD_SHARE = 0.5
_RUNNER_SHARE = 0.5
_BUILDERS_SHARE = 0.75
# A builder that imported its compiler and searches needs half of this.
_MIN_BUILDER_BYTES = 1 << 30
# Stacks of threads count as data though hardly any of their memory is used.
_STACK_BYTES_PER_THREAD = 16 << 20

_PROC = Path("/proc/self")


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


def memory_limits(settings: Settings, n_bytes: int | None = None) -> MemoryLimits:
    """Return the limits of worker processes; a setting replaces all of them.

    Args:
        settings: The setting, and the number of builders that share the memory.
        n_bytes: Memory to share; by default that of the cgroup or the machine.
    """
    if settings.worker_bytes is not None:
        chosen = settings.worker_bytes
        return MemoryLimits(chosen, chosen, chosen, chosen)
    total = usable_bytes() if n_bytes is None else n_bytes
    runner = int(_RUNNER_SHARE * total)
    return MemoryLimits(
        network=int(_NETWORK_SHARE * total),
        load=int(_LOAD_SHARE * total),
        runner=runner,
        builder=max(
            int(_BUILDERS_SHARE * total) // settings.n_builders, min(_MIN_BUILDER_BYTES, runner)
        ),
    )


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


def _cgroup_limits(proc: Path) -> Iterator[int]:
    """Yield the limits of the memory cgroups of a process, of version 2 and 1."""
    try:
        mounts = (proc / "mountinfo").read_text().splitlines()
        groups = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return
    paths = {}
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            paths["memory.limit_in_bytes" if controllers else "memory.max"] = path
    for line in mounts:
        mount, _, filesystem = line.partition(" - ")
        *_, root, point, _options = mount.split(" ")[:6]
        kind, _source, options = filesystem.split(" ", 2)
        if kind == "cgroup2":
            name = "memory.max"
        elif kind == "cgroup" and "memory" in options.split(","):
            name = "memory.limit_in_bytes"
        else:
            continue
        yield from _limits_along(Path(point), _below(root, paths.get(name, "/")), name)


def _below(root: str, path: str) -> str:
    """Return a cgroup relative to a mount: a container sees its own cgroup as the root."""
    if root != "/" and path.startswith(root):
        path = path.removeprefix(root)
    return path.strip("/")


def _limits_along(point: Path, path: str, name: str) -> Iterator[int]:
    """Yield the limits of a cgroup and of all around it, as far as they can be read."""
    folder = point / path
    while folder == point or point in folder.parents:
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            text = ""
        if text.isdigit():
            yield int(text)
        folder = folder.parent
