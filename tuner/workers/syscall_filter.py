"""A seccomp filter: system calls that no worker needs fail, among them sockets.

Standard library only, as :mod:`tuner.workers.landlock`.
"""

import ctypes
import errno
import os
import platform
import socket
import struct

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_SET_MODE_FILTER, _TSYNC = 1, 1 << 0
# Older kernels slow down processes with a filter by a mitigation, which would show in timings.
_SPEC_ALLOW = 1 << 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
# Offsets in the data of a filter: number, architecture, low half of the first argument.
_NUMBER, _ARCH, _ARGUMENT = 0, 4, 16
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# On x86-64, numbers from here on are those of the x32 ABI.
_X32 = 0x40000000
# CLONE_NEW* for namespaces.
_NAMESPACES = 0x7E020000

# Numbers of asm/unistd_64.h and asm-generic/unistd.h.
_DENIED = {
    "x86_64": {
        "ptrace": 101, "syslog": 103, "vhangup": 153, "pivot_root": 155, "chroot": 161,
        "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167,
        "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172,
        "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179,
        "clock_settime": 227, "kexec_load": 246, "add_key": 248, "request_key": 249,
        "keyctl": 250, "unshare": 272, "perf_event_open": 298, "fanotify_init": 300,
        "name_to_handle_at": 303, "open_by_handle_at": 304, "setns": 308,
        "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313,
        "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
    },
    "aarch64": {
        "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "vhangup": 58,
        "quotactl": 60, "acct": 89, "unshare": 97, "kexec_load": 104, "init_module": 105,
        "delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117,
        "reboot": 142, "sethostname": 161, "setdomainname": 162, "settimeofday": 170,
        "add_key": 217, "request_key": 218, "keyctl": 219, "swapon": 224, "swapoff": 225,
        "perf_event_open": 241, "fanotify_init": 262, "name_to_handle_at": 264,
        "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270,
        "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "bpf": 280,
        "userfaultfd": 282, "kexec_file_load": 294,
    },
}  # fmt: skip
# Equal on all architectures.
_DENIED_EVERYWHERE = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443,
}  # fmt: skip
_CLONE3 = 435
# Audit architecture, and the numbers of seccomp, socket and clone.
_MACHINES = {"x86_64": (0xC000003E, 317, 41, 56), "aarch64": (0xC00000B7, 277, 198, 220)}
# Name resolution asks the kernel for addresses by netlink.
_INTERNET = (socket.AF_INET, socket.AF_INET6, getattr(socket, "AF_NETLINK", 16))

_LIBC = ctypes.CDLL(None, use_errno=True)


def is_supported() -> bool:
    """Return whether this kernel filters system calls, and its numbers are known here."""
    if platform.machine() not in _MACHINES:
        return False
    # The missing filter is a bad address where there are filters, and an unknown mode otherwise.
    _LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, None, 0, 0)
    return ctypes.get_errno() == errno.EFAULT


def install(*, network: bool) -> None:
    """Filter the system calls of all threads of this process, and of its children, for good.

    The process must have set ``no_new_privs``.

    Args:
        network: True to allow sockets of the internet; others are denied in any case, but for
            connected pairs.

    Raises:
        OSError: If the kernel refuses.
    """
    machine = platform.machine()
    code = program(machine, network=network)
    instructions = ctypes.create_string_buffer(code, len(code))
    address = ctypes.addressof(instructions)
    header = struct.pack("@HP", len(code) // 8, address)
    number = _MACHINES[machine][1]
    if _LIBC.syscall(number, _SET_MODE_FILTER, _TSYNC | _SPEC_ALLOW, header) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "seccomp")


def program(machine: str, *, network: bool) -> bytes:
    """Assemble the filter of an architecture, as classic BPF."""
    arch, _, socket_call, clone = _MACHINES[machine]
    denied = [*_DENIED[machine].values(), *_DENIED_EVERYWHERE.values()]
    code = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, arch),
        _refuse(errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        _refuse(errno.ENOSYS),
        # The C library falls back to clone, whose flags a filter can read.
        (_EQUAL, 0, 1, _CLONE3),
        _refuse(errno.ENOSYS),
        (_EQUAL, 0, 4, clone),
        (_LOAD, 0, 0, _ARGUMENT),
        (_ANY_BIT, 0, 1, _NAMESPACES),
        _refuse(errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, 3 + len(_INTERNET) if network else 1, socket_call),
    ]
    if network:
        code.append((_LOAD, 0, 0, _ARGUMENT))
        code += [
            (_EQUAL, len(_INTERNET) - index, 0, family) for index, family in enumerate(_INTERNET)
        ]
        code += [_refuse(errno.EACCES), (_RETURN, 0, 0, _ALLOW)]
    else:
        code.append(_refuse(errno.EACCES))
    for index, number in enumerate(denied):
        code.append((_EQUAL, len(denied) - index, 0, number))
    code += [(_RETURN, 0, 0, _ALLOW), _refuse(errno.EPERM)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _refuse(error: int) -> tuple[int, int, int, int]:
    """Return the instruction that fails a system call with an error number."""
    return (_RETURN, 0, 0, _ERRNO | error)
