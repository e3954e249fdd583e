"""Functions that attempt, in a worker, what its sandbox forbids or allows."""

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from tuner.engines.base import ModelFile
from tuner.library.manifest import Source
from tuner.networks.base import LoadedModel
from tuner.workers import syscall_filter
from tuner.workers.confinement import landlock

NAME = "tests.tuner.workers.inside_sandbox"
_PTRACE = {"x86_64": 101, "aarch64": 117}
_PR_SET_NO_NEW_PRIVS = 38
_UNSHARE_USER = 0x10000000
_F_SETOWN_EX, _F_OWNER_PID = 15, 1
_MAP_GROWSDOWN = 0x100
_FIOSETOWN, _SIOCSPGRP, _FIONREAD = 0x8901, 0x8902, 0x541B


def lie(sha256: str, content: bytes, form: str, folder: str, kind: str) -> LoadedModel:
    """Answer as the loader of another model: with its file, or with what is not a file."""
    path = Path(folder) / f"{sha256}.{form}"
    if kind == "link":
        path.symlink_to(content.decode())
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "elsewhere":
        path = Path(content.decode())
    elif kind == "replaced folder":
        replace_folder(folder, str(Path(content.decode()).parent))
    elif kind == "large":
        path.touch()
        os.truncate(path, 2**31)
    else:
        path.write_bytes(content)
    return LoadedModel(
        "other",
        sha256,
        ModelFile(str(path), form, {}),
        {"y": ((1,), "float32")},
        (),
        Source("other"),
    )


def replace_folder(folder: str, target: str) -> None:
    """Put a link to another folder in the place of a folder."""
    Path(folder).rename(f"{folder}-aside")
    Path(folder).symlink_to(target)


def read(path: str) -> str:
    """Read a file; return its text, or the name of the error."""
    try:
        return Path(path).read_text()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def write(path: str) -> str:
    """Append to a file; return ``ok``, or the name of the error."""
    return _attempt(lambda: Path(path).open("a").close())


def truncate(path: str) -> str:
    """Cut a file off."""
    return _attempt(lambda: os.truncate(path, 0))


def remove(path: str) -> str:
    """Remove a file."""
    return _attempt(lambda: Path(path).unlink())


def connect(family: int, address: str | tuple[str, int], kind: int = socket.SOCK_STREAM) -> str:
    """Connect a socket."""

    def work() -> None:
        with socket.socket(family, kind) as opened:
            opened.settimeout(2.0)
            opened.connect(address)

    return _attempt(work)


def connect_by_child(port: int) -> str:
    """Connect by a program that this process starts."""
    program = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
    done = subprocess.run(
        ["python3", "-I", "-S", "-c", program], capture_output=True, text=True, check=False
    )
    return done.stderr.strip().splitlines()[-1] if done.returncode else "ok"


def read_by_child(path: str) -> str:
    """Read a file by a program that this process starts."""
    done = subprocess.run(["cat", path], capture_output=True, text=True, check=False)
    return done.stdout or "nothing"


def signal_process(pid: int) -> str:
    """Look whether a process could be signalled."""
    return _attempt(lambda: os.kill(pid, 0))


def signal_process_kill() -> None:
    """Die as a kernel that crashes does."""
    os.kill(os.getpid(), signal.SIGKILL)


def trace_parent() -> str:
    """Attach to the process that started this one."""
    return _attempt(lambda: _system_call(_PTRACE[platform.machine()], 16, os.getppid(), 0, 0))


def limit_process(pid: int) -> str:
    """Limit the length of the files that a process writes."""
    return _attempt(lambda: resource.prlimit(pid, resource.RLIMIT_FSIZE))


def pin_process(pid: int) -> str:
    """Choose the cores of a process."""
    return _attempt(lambda: os.sched_setaffinity(pid, os.sched_getaffinity(0)))


def schedule_process(pid: int) -> str:
    """Choose when a process runs."""
    return _attempt(lambda: os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0)))


def slow_process(pid: int) -> str:
    """Give a process the priority that it has."""
    return _attempt(lambda: os.setpriority(os.PRIO_PROCESS, pid, os.nice(0)))


def slow_all() -> str:
    """Give all processes of the user the priority of this one."""
    return _attempt(lambda: os.setpriority(os.PRIO_USER, 0, os.nice(0)))


def pin_thread() -> str:
    """Choose the cores of another thread of this process by its id, as OpenMP does."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        return pin_process(thread.native_id or 0)
    finally:
        end.set()
        thread.join()


def gain_no_privileges() -> None:
    """Give up what the programs of this process could gain."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def signal_without_landlock(pid: int) -> dict[str, str]:
    """Signal a process, with the filter that kernels get whose Landlock leaves signals."""
    own = os.getpid()
    syscall_filter.install(syscall_filter.Permissions())
    stream, _other = socket.socketpair()
    number, owner = struct.pack("@i", pid), struct.pack("@ii", _F_OWNER_PID, pid)
    libc = ctypes.CDLL(None, use_errno=True)
    return {
        "kill": signal_process(pid),
        "kill all": signal_process(-1),
        "kill group": signal_process(0),
        "own process": signal_process(own),
        "own thread": _attempt(lambda: signal.pthread_kill(threading.get_ident(), 0)),
        "sigqueue": _attempt(lambda: _checked(libc.sigqueue(pid, 0, None))),
        "descriptor": _attempt(lambda: signal.pidfd_send_signal(os.pidfd_open(pid), 0)),
        "owner": _attempt(lambda: fcntl.fcntl(stream, fcntl.F_SETOWN, pid)),
        "owner by kind": _attempt(lambda: fcntl.fcntl(stream, _F_SETOWN_EX, owner)),
        "owner by FIOSETOWN": _attempt(lambda: fcntl.ioctl(stream, _FIOSETOWN, number)),
        "owner by SIOCSPGRP": _attempt(lambda: fcntl.ioctl(stream, _SIOCSPGRP, number)),
        "own descriptor": _attempt(lambda: fcntl.fcntl(stream, fcntl.F_GETFL)),
        "own bytes": _attempt(lambda: fcntl.ioctl(stream, _FIONREAD, bytes(4))),
    }


def use_sockets_of_cuda(path: str) -> dict[str, str]:
    """Use Unix sockets with the filter of a machine with GPUs; ``path`` is one that listens."""
    syscall_filter.install(syscall_filter.Permissions(signals=True, cuda=True))
    name = f"\0cuda-uvmfd-test-{os.getpid()}"

    def listen() -> None:
        kind = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        with socket.socket(socket.AF_UNIX, kind) as opened:
            opened.bind(name)
            opened.listen()

    def open_one(family: int, kind: int) -> str:
        return _attempt(lambda: socket.socket(family, kind).close())

    return {
        "listen": _attempt(listen),
        "connect": connect(socket.AF_UNIX, path, socket.SOCK_SEQPACKET),
        "stream": open_one(socket.AF_UNIX, socket.SOCK_STREAM),
        "datagram": open_one(socket.AF_UNIX, socket.SOCK_DGRAM),
        "internet": open_one(socket.AF_INET, socket.SOCK_SEQPACKET),
    }


def send_by_pair(path: str, kind: int) -> str:
    """Send a datagram to a path by one of two sockets that are connected to each other."""

    def work() -> None:
        one, other = socket.socketpair(socket.AF_UNIX, kind)
        with one, other:
            one.sendto(b"x", path)

    return _attempt(work)


def name_threads(path: str) -> dict[str, str]:
    """Name a thread as CUDA does, with the rights of a machine with GPUs, and write elsewhere."""
    landlock.restrict([("/proc/self/task", landlock.OVERWRITE)], ())
    task = f"/proc/self/task/{threading.get_native_id()}/comm"
    return {
        "own thread": _attempt(lambda: Path(task).write_text("cuda-test")),
        "process": _attempt(lambda: Path("/proc/self/comm").write_text("cuda-test")),
        "file": _attempt(lambda: Path(path).write_text("")),
    }


def new_user_namespace() -> str:
    """Become root of a namespace."""
    return _attempt(lambda: _checked(ctypes.CDLL(None, use_errno=True).unshare(_UNSHARE_USER)))


def scratch() -> str:
    """Write a temporary file, and return its folder."""
    folder = tempfile.mkdtemp()
    (Path(folder) / "file").write_text("x")
    return folder


def modules() -> list[str]:
    """Return the modules of this worker, which it imported before its sandbox or for this call."""
    return sorted({name.partition(".")[0] for name in sys.modules})


def status(field: str) -> str:
    """Return a field of this process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{field}:"))


def capabilities_of_child() -> int:
    """Return the effective capabilities of a program that this process starts."""
    program = (
        "import ctypes, struct; held = ctypes.create_string_buffer(24); "
        "ctypes.CDLL(None).capget(struct.pack('@Ii', 0x20080522, 0), held); "
        "print(struct.unpack('@6I', held.raw)[0])"
    )
    command = ["python3", "-I", "-S", "-c", program]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def reach_kernel(name: str) -> str:
    """Attempt what a worker does not need; leaves nothing behind."""
    libc = ctypes.CDLL(None, use_errno=True)
    work = {
        "shmget": lambda: _removed(libc.shmctl, libc.shmget(0, 4096, 0o600)),
        "msgget": lambda: _removed(libc.msgctl, libc.msgget(0, 0o600)),
        "semget": lambda: _removed(libc.semctl, libc.semget(0, 1, 0o600), 0),
        "mq_open": lambda: _open_queue(libc),
        "chown": lambda: os.chown(tempfile.mkdtemp(), 1, 1),
        "setxattr": lambda: os.setxattr(tempfile.mkdtemp(), "trusted.x", b"x"),
        "set-user-id": lambda: Path(tempfile.mkdtemp()).chmod(0o4755),
        "clock_adjtime": lambda: _system_call(
            {"x86_64": 305, "aarch64": 266}[platform.machine()], 0, 0
        ),
        "memfd_create": lambda: os.close(os.memfd_create("x")),
        "shared memory": lambda: mmap.mmap(-1, 4096, flags=mmap.MAP_SHARED).close(),
        "stack": lambda: mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | _MAP_GROWSDOWN).close(),
        "zeros": lambda: os.close(os.open("/dev/zero", os.O_RDWR)),
    }[name]
    return _attempt(work)


def _removed(control: Any, made: int, *of: int) -> None:
    _checked(made)
    _checked(control(made, *of, 0, None))


def _open_queue(libc: ctypes.CDLL) -> None:
    name = f"/tuner-test-{os.getpid()}".encode()
    _checked(libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None))
    _checked(libc.mq_unlink(name))


def use_memory_and_modes() -> str:
    """Map private memory and a shared file, and make a file executable."""

    def work() -> None:
        mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE).close()
        with tempfile.TemporaryFile() as stream:
            stream.truncate(4096)
            mmap.mmap(stream.fileno(), 4096).close()
        Path(tempfile.mkdtemp()).chmod(0o755)

    return _attempt(work)


def compile_c() -> str:
    """Compile a program by the C compiler, in a temporary folder, and run it."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "a.c", Path(folder) / "a.out"
        source.write_text('#include <stdio.h>\nint main() { puts("ran"); }\n')
        subprocess.run(["cc", str(source), "-o", str(program)], check=True)
        done = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _attempt(work: object) -> str:
    try:
        work()  # type: ignore[operator]
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def _system_call(number: int, *arguments: int) -> None:
    _checked(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
