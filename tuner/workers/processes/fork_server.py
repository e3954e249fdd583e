"""Workers forked from a template, a process that has imported what they need.

An engine takes two seconds to import, a fork milliseconds, and the forked processes share what was
imported. Each set of environment variables has a template of its own. It imports the modules of
calls, outside of any sandbox and before any input is read, and runs none of their functions.
"""

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from tuner.workers import worker_process
from tuner.workers.processes import process_start

#: What the processes are called in lists of processes.
TEMPLATE_NAME = "tuner-template"
#: Exit status of a process that the system has no room for: EX_OSERR of sysexits.h.
CANNOT_FORK = 71
# Templates that one process keeps; the variables of its pools differ in their numbers of threads.
_MAX_TEMPLATES = 4
_MAX_REQUEST_BYTES = 1 << 20
_PID_BYTES = 32
#: A process that was killed ends within this time, unless it is stuck in the kernel.
KILL_TIMEOUT_SECS = 5.0
# Their libraries may start threads as they are imported, which a fork does not have.
_NOT_IMPORTED = ("tuner.peers.",)


class ForkedProcess:
    """A process that a template forks, with the methods of :class:`subprocess.Popen`.

    It ends with its template, which ends with this process.

    Attributes:
        returncode: Exit status, negative for a signal; None while it is not known.
    """

    def __init__(self, status: socket.socket) -> None:
        self.returncode: int | None = None
        self._status = status
        self._lock = threading.Lock()
        self._pid = 0
        self._descriptor = -1
        self._is_killed = False

    @property
    def pid(self) -> int:
        """Its number; 0 if it is not forked yet."""
        self.poll()
        return self._pid

    def poll(self) -> int | None:
        """Return the exit status; None while it lives."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout_secs: float) -> int:
        """Return the exit status.

        Raises:
            subprocess.TimeoutExpired: If it lives longer.
        """
        deadline = time.monotonic() + timeout_secs
        while self.returncode is None:
            secs = max(deadline - time.monotonic(), 0.0)
            if not self._ready(secs) and self.returncode is None:
                raise subprocess.TimeoutExpired("a worker", timeout_secs)
            with self._lock:
                ready = self._ready(0.0)
                if self._status.fileno() in ready:
                    self._read()
                elif ready:
                    self._end(-signal.SIGKILL)
        return self.returncode

    def _ready(self, secs: float) -> list[int]:
        """Wait for a report, or for the end of a process that was killed.

        A template that imports a module reports seconds later.
        """
        poller = select.poll()
        try:
            poller.register(self._status, select.POLLIN)
            if self._is_killed:
                poller.register(self._descriptor, select.POLLIN)
        except ValueError:  # another thread read the last report, and closed the socket
            return []
        return [descriptor for descriptor, _ in poller.poll(1000.0 * secs)]

    def kill(self) -> None:
        """Kill it; one that was not forked yet will not be."""
        self.poll()
        with self._lock:
            if self._pid and self.returncode is None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
                self._is_killed = True
            elif self.returncode is None:
                self._end(-signal.SIGKILL)

    def _read(self) -> None:
        """Read what the template reports: the number of the process, later its exit status."""
        try:
            text, descriptors, _, _ = socket.recv_fds(self._status, _PID_BYTES, 1)
        except ConnectionError:
            text, descriptors = b"", []
        if descriptors:
            self._pid, self._descriptor = int(text), descriptors[0]
        else:
            # A template that was killed takes its processes with it.
            self._end(int(text) if text else -signal.SIGKILL)

    def _end(self, status: int) -> None:
        self.returncode = status
        self._status.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        if self.returncode is None:
            self._end(-signal.SIGKILL)


class _Template:
    """A template as the process that started it sees it."""

    def __init__(self, log: Path, environ: Mapping[str, str], packages: Iterable[str]) -> None:
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: subprocess.Popen[bytes] | None = None
        errors: list[BaseException] = []
        is_started = threading.Event()

        def run() -> None:
            # Linux ends the template when the thread that started it ends.
            try:
                self._process = process_start.start(
                    None, log, theirs, __name__, os.getpid(), environ=environ, packages=packages
                )
            except BaseException as error:
                errors.append(error)
                return
            finally:
                is_started.set()
            self._process.wait()

        self._thread = threading.Thread(target=run, name="worker-template", daemon=True)
        with theirs:
            try:
                self._thread.start()
            except RuntimeError as error:
                self.requests.close()
                raise OSError(str(error)) from error
            is_started.wait()
        if errors:
            self.requests.close()
            raise errors[0]

    def end(self) -> None:
        """Kill the template, and with it its processes; wait until it has closed its files."""
        self.requests.close()
        if self._process is not None:
            self._process.kill()
        self._thread.join(KILL_TIMEOUT_SECS)


_templates: dict[Any, _Template] = {}
_lock = threading.Lock()
# A forked process has no thread that its template could end with.
os.register_at_fork(after_in_child=_templates.clear)


@atexit.register
def _end_all() -> None:
    for template in _templates.values():
        template.end()


@cache
def is_available() -> bool:
    """Return whether the system can wait for processes by descriptors: Linux 5.3 and newer."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def fork(
    log: Path,
    stream: socket.socket,
    *arguments: Any,
    module: str,
    folder: Path,
    environ: Mapping[str, str],
    packages: Iterable[str],
) -> ForkedProcess:
    """Fork a process that calls ``serve(descriptor, *arguments)`` of the module of workers.

    It is forked as soon as its template has imported the module of its first call, and its current
    folder is that of this process.

    Args:
        log: File that its output is appended to.
        stream: Its connection.
        *arguments: Texts and numbers.
        module: Module of its first call.
        folder: Folder for its temporary files.
        environ: Variables beside those of this process, see :func:`process_start.start`.
        packages: Packages that it imports as this process does.

    Raises:
        OSError: If no template can be started.
    """
    key = (frozenset(process_start.variables(environ).items()), tuple(packages))
    request = json.dumps([module, str(folder), _current_folder(), arguments]).encode()
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ExitStack() as on_error, theirs, log.open("ab") as output:
        on_error.callback(own.close)
        descriptors = [theirs.fileno(), stream.fileno(), output.fileno()]
        with _lock:
            for may_have_ended in (True, False):
                template = _templates.pop(key, None) or _Template(log, environ, packages)
                try:
                    socket.send_fds(template.requests, [request], descriptors)
                except BrokenPipeError:
                    template.requests.close()
                    if not may_have_ended:
                        raise
                else:
                    break
            # The one that was used last is last.
            _templates[key] = template
            if len(_templates) > _MAX_TEMPLATES:
                _templates.pop(next(iter(_templates))).requests.close()
        on_error.pop_all()
    return ForkedProcess(own)


def _current_folder() -> str:
    """Return the current folder, to which paths of models may be relative."""
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:  # it was removed
        return os.sep


def serve(descriptor: int, parent: int) -> None:
    """Fork a process for each request on a socket, until it is closed and they have ended.

    Args:
        descriptor: File descriptor of the socket.
        parent: Id of the process whose death ends this one.
    """
    worker_process.ignore_signals()
    worker_process.name_process(TEMPLATE_NAME)
    worker_process.die_with_parent(parent)
    with socket.socket(fileno=descriptor) as requests:
        requests.set_inheritable(False)
        _Forks(requests).run()


class _Forks:
    """The inside of a template: its requests, and the processes that it forked."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._poller = select.poll()
        self._poller.register(requests, select.POLLIN)
        # By their descriptors: the number of each process, and the socket of its reports.
        self._processes: dict[int, tuple[int, socket.socket]] = {}

    def run(self) -> None:
        """Serve until the requests end, and then the processes."""
        is_open = True
        while is_open or self._processes:
            for ready, _ in self._poller.poll():
                if ready in self._processes:
                    self._report_end(ready)
                elif is_open and not self._answer_next():
                    is_open = False
                    self._poller.unregister(self._requests)

    def _answer_next(self) -> bool:
        """Fork the process of the next request; return False if the requests ended."""
        request, descriptors, _, _ = socket.recv_fds(self._requests, _MAX_REQUEST_BYTES, 3)
        if not request:
            return False
        module, folder, current, arguments = json.loads(request)
        if not descriptors:  # the system passes fewer if this process has too many files open
            return True
        reports, files = socket.socket(fileno=descriptors[0]), descriptors[1:]
        _import(module)
        if len(files) < len(("connection", "output")):
            _refuse(reports)
        elif _is_wanted(reports):
            arguments = (*arguments, os.getpid())
            self._fork(reports, lambda: _work(files, folder, current, arguments))
        else:
            reports.close()
        for descriptor in files:
            os.close(descriptor)
        return True

    def _fork(self, reports: socket.socket, work: Callable[[], object]) -> None:
        """Fork a process, and report its number, or that the system has no room for it."""
        pid = -1
        try:
            pid = os.fork()
            if pid == 0:
                self._become(reports, work)
            descriptor = os.pidfd_open(pid)
        except OSError:
            if pid > 0:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            _refuse(reports)
            return
        self._processes[descriptor] = (pid, reports)
        self._poller.register(descriptor, select.POLLIN)
        with suppress(OSError):  # the process was given up
            socket.send_fds(reports, [str(pid).encode()], [descriptor])

    def _become(self, reports: socket.socket, work: Callable[[], object]) -> NoReturn:
        """Be a worker from now on, and nothing of a template: it must not report for others."""
        status = 1
        try:
            for each in (self._requests, reports, *(each for _, each in self._processes.values())):
                each.close()
            for descriptor in self._processes:
                os.close(descriptor)
            work()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else status
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)

    def _report_end(self, descriptor: int) -> None:
        pid, reports = self._processes.pop(descriptor)
        self._poller.unregister(descriptor)
        _, ended = os.waitpid(pid, 0)
        os.close(descriptor)
        with reports, suppress(OSError):
            reports.send(str(os.waitstatus_to_exitcode(ended)).encode())


def _import(module: str) -> None:
    """Import the module of a call; where this fails, the call says why."""
    if module in sys.modules or module.startswith(_NOT_IMPORTED):
        return
    with suppress(BaseException):
        importlib.import_module(module)
    # A child that collects garbage would copy the pages of all modules.
    gc.collect()
    gc.freeze()


def _refuse(reports: socket.socket) -> None:
    with reports, suppress(OSError):
        reports.send(str(CANNOT_FORK).encode())


def _is_wanted(reports: socket.socket) -> bool:
    """Return whether anyone listens; the other end is closed to give a process up."""
    poller = select.poll()
    poller.register(reports, 0)
    return not poller.poll(0)


def _work(files: Sequence[int], folder: str, current: str, arguments: Sequence[Any]) -> None:
    stream, output = files
    with suppress(OSError):
        os.chdir(current)
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None
    worker_process.serve(stream, *arguments)
