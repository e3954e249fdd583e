"""The confinement of worker processes: which files they reach, no network, fewer system calls.

A worker enters its sandbox before it imports anything of an engine, in any environment, and its
child processes inherit it. What it may reach is decided by the process that starts it, in
:mod:`tuner.workers.confinement.sandbox_paths`.
"""

import ctypes
import json
import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tuner.workers import syscall_filter
from tuner.workers.confinement import landlock

#: State of workers that are confined by everything that this module knows.
CONFINED = "confined"
_PR_SET_NO_NEW_PRIVS = 38
# Version 3 of linux/capability.h, and the two capabilities by which root reads and writes files of
# others, which Landlock limits.
_CAPABILITY_VERSION = 0x20080522
_KEPT_CAPABILITIES = 1 << 1 | 1 << 2
# Below it, files can be truncated that cannot be written; Linux 6.2 has it.
_MIN_LANDLOCK = 3
# From it on, Landlock confines signals, to children of the process too.
_MIN_LANDLOCK_OF_SIGNALS = 6
# Devices that hold nothing, those of which one that is open for writing gives memory that limits do
# not count, and those of NVIDIA's driver, which checks each process itself.
_DEVICES = ("null", "full")
_SOURCES = ("zero", "random", "urandom")
_CUDA_DEVICES = ("nvidia", "dxg")
_GPU_DEVICES = (*_CUDA_DEVICES, "dri")
# Parts of /proc that name no process, and this one. Others show what their commands were.
_PROC = (
    "self", "cpuinfo", "devices", "driver", "filesystems", "loadavg", "meminfo", "modules", "stat",
    "sys", "uptime", "version",
)  # fmt: skip


@dataclass(frozen=True)
class Sandbox:
    """Rights of a worker, beside those to its own temporary folder.

    Attributes:
        reads: Paths that it reads and executes, with all beneath.
        lists: Folders that it lists, with all beneath.
        writes: Folders that it reads and writes.
        tcp_ports: Ports that it connects to; empty for no network at all.
        pins_threads: True to choose the cores of its threads, as kernels that are timed need.
        is_required: True to end rather than run with less.
    """

    reads: tuple[str, ...]
    lists: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    tcp_ports: tuple[int, ...] = ()
    pins_threads: bool = False
    is_required: bool = False

    def as_text(self) -> str:
        """Return it as JSON, for the command line of a worker."""
        return json.dumps(vars(self))

    @classmethod
    def from_text(cls, text: str) -> "Sandbox":
        """Return the sandbox of :meth:`as_text`."""
        values: dict[str, Any] = json.loads(text)
        return cls(**{k: _frozen(v) for k, v in values.items()})


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def state(mode: str) -> str:
    """Describe in words how workers are confined by a setting; :data:`CONFINED` if fully."""
    if mode == "off":
        return "off"
    problem = shortcoming()
    return f"partial: {problem}" if problem else CONFINED


def shortcoming() -> str:
    """Return why this kernel cannot confine workers as described; empty if it can."""
    version = landlock.abi_version()
    problems = []
    if version < _MIN_LANDLOCK:
        has = f"version {version} of it" if version else "none"
        problems.append(f"files need Landlock {_MIN_LANDLOCK} (Linux 6.2), and it has {has}")
    if not syscall_filter.is_supported():
        problems.append("sockets need seccomp filters, on x86-64 or ARM64")
    return "; ".join(problems)


def enter(sandbox: Sandbox, scratch: str) -> None:
    """Confine this process for good, as far as the kernel can.

    Args:
        sandbox: Rights that it keeps.
        scratch: Folder of temporary files that it may write, too.

    Raises:
        OSError: If the kernel refuses, or the sandbox is required and the kernel lacks it.
        RuntimeError: If it is too late, because threads were started that would stay free.
    """
    problem = shortcoming()
    if problem and sandbox.is_required:
        raise OSError(f"the kernel cannot confine workers: {problem}")
    if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208  only their number counts
        raise RuntimeError("threads are running already")
    if ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError("no_new_privs cannot be set")
    _drop_capabilities()
    gpus = [name for name in os.listdir("/dev") if name.startswith(_GPU_DEVICES)]  # noqa: PTH208
    if landlock.abi_version():
        landlock.restrict(_rules(sandbox, scratch, gpus), sandbox.tcp_ports)
    if syscall_filter.is_supported():
        permissions = syscall_filter.Permissions(
            network=bool(sandbox.tcp_ports),
            pinning=sandbox.pins_threads,
            signals=landlock.abi_version() >= _MIN_LANDLOCK_OF_SIGNALS,
            cuda=_have_cuda(gpus),
        )
        syscall_filter.install(permissions)


def _drop_capabilities() -> None:
    """Give up the privileges of root, for good since ``no_new_privs`` is set.

    Raises:
        OSError: If the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("@Ii", _CAPABILITY_VERSION, 0)
    held = ctypes.create_string_buffer(24)
    if libc.capget(header, held) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be read")
    _, permitted, *_ = struct.unpack("@6I", held.raw)
    kept = permitted & _KEPT_CAPABILITIES
    if libc.capset(header, struct.pack("@6I", kept, kept, 0, 0, 0, 0)) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")


def enter_or_report(sandbox: Sandbox, scratch: str) -> None:
    """Confine this process; if that fails and is not required, say so in its log."""
    try:
        enter(sandbox, scratch)
    except (OSError, RuntimeError) as error:
        print(f"this worker is not confined: {error}", file=sys.stderr, flush=True)  # noqa: T201
        if sandbox.is_required:
            raise


def _rules(sandbox: Sandbox, scratch: str, gpus: list[str]) -> Iterator[tuple[str, int]]:
    for path in (*sandbox.reads, *(f"/proc/{name}" for name in _PROC)):
        yield path, landlock.READ
    for path in sandbox.lists:
        yield path, landlock.LIST
    for path in (*sandbox.writes, scratch):
        yield path, landlock.WRITE
    for name in (*_DEVICES, *gpus):
        yield f"/dev/{name}", landlock.USE | landlock.LIST
    for name in _SOURCES:
        yield f"/dev/{name}", landlock.READ
    if _have_cuda(gpus):
        # CUDA shares memory between processes here.
        yield "/dev/shm", landlock.WRITE
        yield "/dev/zero", landlock.USE
        # It names its threads, and does not start if it cannot (error 304).
        yield "/proc/self/task", landlock.OVERWRITE


def _have_cuda(gpus: list[str]) -> bool:
    """Return whether this machine has CUDA's devices."""
    return any(name.startswith(_CUDA_DEVICES) for name in gpus)
