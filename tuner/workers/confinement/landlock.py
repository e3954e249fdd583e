"""Linux's Landlock: a process gives up its rights to files, TCP ports and signals for good.

The kernel's documentation, userspace-api/landlock, defines the structures and numbers. Workers
enter it before they import anything of an engine, in any environment: standard library only.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

# Equal on all architectures.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH, _NET_PORT = 1, 2

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE_DIR, _MAKE_REG, _MAKE_FIFO, _MAKE_SYM = 1 << 7, 1 << 8, 1 << 10, 1 << 12
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2

#: Rights to list folders; to read and execute; to use a device; to overwrite existing files; to
#: write as well as read.
LIST = _READ_DIR
READ = _EXECUTE | _READ_FILE | _READ_DIR
USE = _READ_FILE | _WRITE_FILE
OVERWRITE = USE | _TRUNCATE
WRITE = (
    READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_FIFO | _MAKE_SYM
) | (_REFER | _TRUNCATE)

_LIBC = ctypes.CDLL(None, use_errno=True)


def abi_version() -> int:
    """Return the version of the kernel's Landlock; 0 if it has none."""
    version: int = _LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
    return max(version, 0)


def restrict(rules: Iterable[tuple[str, int]], tcp_ports: Iterable[int]) -> None:
    """Give up all rights to files but the named ones, to TCP ports, and to signal others.

    It holds for this thread and those that it starts, and for their child processes. The process
    must have set ``no_new_privs``. Older versions of Landlock restrict less: below 3 files can be
    truncated, below 4 ports are free, below 6 signals are.

    Args:
        rules: Paths, and the rights to what lies beneath each; missing paths are skipped.
        tcp_ports: Ports that the process may connect to.

    Raises:
        OSError: If the kernel refuses.
    """
    version = abi_version()
    handled = (1 << 13) - 1 | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    attributes = struct.pack(
        "=QQQ",
        handled,
        _BIND_TCP | _CONNECT_TCP if version >= 4 else 0,
        _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if version >= 6 else 0,
    )[: 24 if version >= 6 else 16 if version >= 4 else 8]
    ruleset = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    try:
        for path, rights in rules:
            _add_path(ruleset, path, rights & handled)
        for port in tcp_ports if version >= 4 else ():
            _call(_ADD_RULE, ruleset, _NET_PORT, struct.pack("=QQ", _CONNECT_TCP, port), 0)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _add_path(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        rights &= _OF_FILES
    if rights:
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    # The kernel forgets what is in /proc when memory is short, and its rules with it, unless it
    # is open.
    if not path.startswith("/proc/"):
        os.close(descriptor)


def _call(number: int, *arguments: object) -> int:
    result: int = _LIBC.syscall(number, *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "Landlock")
    return result
