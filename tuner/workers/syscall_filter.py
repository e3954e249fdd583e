"""A seccomp filter: system calls that no worker needs fail, among them sockets.

Standard library only, as :mod:`tuner.workers.confinement.landlock`.
"""

import ctypes
import errno
import os
import platform
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass

_SET_MODE_FILTER, _TSYNC = 1, 1 << 0
# Older kernels slow down processes with a filter by a mitigation, which would show in timings.
_SPEC_ALLOW = 1 << 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
# Offsets in the data of a filter: number, architecture, low half of the first argument; the next
# arguments follow in steps of 8 bytes. Ids of processes are 32 bits wide.
_NUMBER, _ARCH, _ARGUMENT = 0, 4, 16
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# On x86-64, numbers from here on belong to the x32 ABI.
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
        "clock_settime": 227, "chown": 92, "lchown": 94,
        "mknod": 133, "kexec_load": 246, "add_key": 248, "request_key": 249,
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
# Numbers on x86-64 and ARM64 of system calls for memory, messages and semaphores that outlive a
# process, for the owners and extended attributes of files, and for the clock. On a machine of its
# own, no library needs them: what looks for them goes on without.
_DENIED_BY_ARCHITECTURE = {
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197),
    "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183), "mq_notify": (244, 184), "mq_getsetattr": (245, 185),
    "fchown": (93, 55), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "memfd_secret": (447, 447), "setxattrat": (463, 463), "removexattrat": (466, 466),
}  # fmt: skip
# Memory in a file without a name, which limits on memory do not count.
_MEMFD_CREATE = (319, 279)
# Argument of mmap with its flags, and the flags of memory that is shared and has no file, and of
# memory that counts as a stack.
_MMAP, _MMAP_FLAGS = (9, 222), 3
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_GROWSDOWN = 0x01, 0x20, 0x100
# Numbers of system calls that change modes, and the argument with the mode, in which the bits for a
# program with the rights of its owner or group are refused; -1 where an architecture lacks one.
_MODES = {"chmod": (90, -1, 1), "fchmod": (91, 52, 1), "fchmodat": (268, 53, 2),
          "fchmodat2": (452, 452, 2)}  # fmt: skip
_SET_ID = 0o6000
# Numbers on x86-64 and ARM64 of system calls that act on a process, and the argument that names it:
# none (0) and this one are permitted.
_ON_PROCESSES = {
    "prlimit64": (302, 261, 0), "sched_setparam": (142, 118, 0),
    "sched_setscheduler": (144, 119, 0), "sched_setattr": (314, 274, 0),
    "setpriority": (141, 140, 1), "ioprio_set": (251, 30, 1), "migrate_pages": (256, 238, 0),
    "move_pages": (279, 239, 0),
}  # fmt: skip
_SET_AFFINITY = (203, 122, 0)
# The first argument of these names the kind of target; the kind "process" alone is permitted.
_KINDS = {"setpriority": 0, "ioprio_set": 1}
# Signals to another process; a first argument that names this one is permitted.
_SIGNALS = {
    "kill": (62, 129, 0), "tgkill": (234, 131, 0), "rt_sigqueueinfo": (129, 138, 0),
    "rt_tgsigqueueinfo": (297, 240, 0),
}  # fmt: skip
# Signals by the id of a thread or by a descriptor, which tell a filter nothing.
_OTHER_SIGNALS = {"tkill": (200, 130), "pidfd_send_signal": (424, 424)}
# Second arguments of fcntl (F_SETOWN, F_SETOWN_EX) and of ioctl (FIOSETOWN, SIOCSPGRP) that choose
# the process which the kernel signals about a descriptor.
_OWNERS = {"fcntl": (72, 25, (8, 15)), "ioctl": (16, 29, (0x8901, 0x8902))}
_CLONE3 = 435
# Audit architecture, and the numbers of seccomp, socket and clone.
_MACHINES = {"x86_64": (0xC000003E, 317, 41, 56), "aarch64": (0xC00000B7, 277, 198, 220)}
# Types of sockets with any of the flags SOCK_NONBLOCK and SOCK_CLOEXEC: the one on which CUDA
# listens (cuInit fails otherwise), and those of pairs. A datagram of a pair could go anywhere.
_FLAGS = (0, 0x800, 0x80000, 0x80800)
_LISTENING = tuple(socket.SOCK_SEQPACKET | flags for flags in _FLAGS)
_PAIRED = (*_LISTENING, *(socket.SOCK_STREAM | flags for flags in _FLAGS))
# Numbers of connect and socketpair on x86-64 and ARM64.
_CONNECT, _SOCKET_PAIR = (42, 203), (53, 199)
# Name resolution asks the kernel for addresses by netlink.
_INTERNET = (socket.AF_INET, socket.AF_INET6, getattr(socket, "AF_NETLINK", 16))

_LIBC = ctypes.CDLL(None, use_errno=True)


def is_supported() -> bool:
    """Return whether this kernel filters system calls, and its numbers are known here."""
    machine = platform.machine()
    # The missing filter is a bad address where there are filters.
    return machine in _MACHINES and _set(machine, None) == errno.EFAULT


@dataclass(frozen=True)
class Permissions:
    """System calls that a process keeps, though others lose them.

    Attributes:
        network: Sockets of the internet; others are denied in any case, but for connected pairs
            and those of ``cuda``.
        pinning: The choice of cores for any thread of the user. Libraries with threads of their
            own choose them by the ids of these, which a filter cannot tell from those of others.
        signals: Signals to any process of the user, for kernels that confine them by Landlock.
        cuda: Unix sockets of sequential packets, as CUDA needs, in a process without network:
            they may listen, but connect to nothing. Memory that processes share.
    """

    network: bool = False
    pinning: bool = False
    signals: bool = False
    cuda: bool = False


def install(permissions: Permissions) -> None:
    """Filter the system calls of all threads of this process, and of its children, for good.

    The process must have set ``no_new_privs``.

    Raises:
        OSError: If the kernel refuses.
    """
    machine = platform.machine()
    code = program(machine, permissions, os.getpid())
    instructions = ctypes.create_string_buffer(code, len(code))
    address = ctypes.addressof(instructions)
    if error := _set(machine, struct.pack("@HP", len(code) // 8, address)):
        raise OSError(error, os.strerror(error), "seccomp")


def _set(machine: str, header: bytes | None) -> int:
    """Set a filter for all threads of this process; return 0 or the number of the error."""
    flags = _TSYNC | _SPEC_ALLOW
    done = _LIBC.syscall(_MACHINES[machine][1], _SET_MODE_FILTER, flags, header)
    return ctypes.get_errno() if done != 0 else 0


_Instruction = tuple[int, int, int, int]


def program(machine: str, permissions: Permissions, process_id: int) -> bytes:
    """Assemble the filter of an architecture, as classic BPF.

    Args:
        permissions: System calls to permit.
        process_id: Process that may act on itself.
    """
    arch, _, socket_call, clone = _MACHINES[machine]
    column = list(_MACHINES).index(machine)
    denied = [*_DENIED[machine].values(), *_DENIED_EVERYWHERE.values()]
    denied += [numbers[column] for numbers in _DENIED_BY_ARCHITECTURE.values()]
    if not permissions.signals:
        denied += [numbers[column] for numbers in _OTHER_SIGNALS.values()]
    if not permissions.network:
        denied.append(_CONNECT[column])
    if not permissions.cuda:
        denied.append(_MEMFD_CREATE[column])
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
    ]
    code += _counted_memory(_MMAP[column], shares=permissions.cuda)
    for *numbers, argument in _MODES.values():
        if numbers[column] >= 0:
            code += [
                (_EQUAL, 0, 4, numbers[column]),
                (_LOAD, 0, 0, _ARGUMENT + 8 * argument),
                (_ANY_BIT, 0, 1, _SET_ID),
                _refuse(errno.EPERM),
                (_RETURN, 0, 0, _ALLOW),
            ]
    code += _checked(socket_call, _sockets(permissions), errno.EACCES)
    code += _checked(_SOCKET_PAIR[column], [(1, _PAIRED)], errno.EACCES)
    for name, (*numbers, argument) in _ON_PROCESSES.items():
        kinds = [(0, (_KINDS[name],))] if name in _KINDS else []
        code += _checked(numbers[column], [*kinds, (argument, (0, process_id))])
    if not permissions.pinning:
        *numbers, argument = _SET_AFFINITY
        code += _checked(numbers[column], [(argument, (0, process_id))])
    if not permissions.signals:
        for *numbers, argument in _SIGNALS.values():
            code += _checked(numbers[column], [(argument, (process_id,))])
        for *numbers, commands in _OWNERS.values():
            allow = (_RETURN, 0, 0, _ALLOW)
            block = [*_skip_if(1, commands), allow, _refuse(errno.EPERM)]
            code += [(_EQUAL, 0, len(block), numbers[column]), *block]
    for index, number in enumerate(denied):
        code.append((_EQUAL, len(denied) - index, 0, number))
    code += [(_RETURN, 0, 0, _ALLOW), _refuse(errno.EPERM)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _sockets(permissions: Permissions) -> list[tuple[int, tuple[int, ...]]]:
    """Return the families and types of sockets that a process may open."""
    if permissions.network:
        return [(0, _INTERNET)]
    return [(0, (socket.AF_UNIX,)), (1, _LISTENING)] if permissions.cuda else [(0, ())]


def _checked(
    number: int, permitted: Iterable[tuple[int, tuple[int, ...]]], error: int = errno.EPERM
) -> list[_Instruction]:
    """Return instructions that decide about one system call, by values of its arguments.

    Args:
        permitted: Positions of arguments, each with the values that it may have.
        error: Number of the error otherwise.
    """
    block: list[_Instruction] = []
    for argument, values in permitted:
        block += [*_skip_if(argument, values), _refuse(error)]
    block.append((_RETURN, 0, 0, _ALLOW))
    return [(_EQUAL, 0, len(block), number), *block]


def _counted_memory(number: int, *, shares: bool) -> list[_Instruction]:
    """Return instructions that permit mmap, but for memory that limits do not count.

    Args:
        number: Number of the system call.
        shares: True to permit memory that is shared and has no file.
    """
    block = [
        (_LOAD, 0, 0, _ARGUMENT + 8 * _MMAP_FLAGS),
        (_ANY_BIT, 0, 1, _MAP_GROWSDOWN),
        _refuse(errno.EPERM),
    ]
    if not shares:
        block += [
            (_ANY_BIT, 0, 2, _MAP_SHARED),
            (_ANY_BIT, 0, 1, _MAP_ANONYMOUS),
            _refuse(errno.EPERM),
        ]
    block.append((_RETURN, 0, 0, _ALLOW))
    return [(_EQUAL, 0, len(block), number), *block]


def _skip_if(argument: int, values: tuple[int, ...]) -> list[_Instruction]:
    """Return instructions that skip the one after them if an argument has one of some values."""
    jumps = [(_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [(_LOAD, 0, 0, _ARGUMENT + 8 * argument), *jumps]


def _refuse(error: int) -> _Instruction:
    """Return the instruction that fails a system call with an error number."""
    return (_RETURN, 0, 0, _ERRNO | error)
