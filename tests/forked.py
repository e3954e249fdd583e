"""Commands in processes forked from one that has imported the program.

Importing it takes more than a second, and the tests run hundreds of commands. Commands that tests
run to their end also share the templates of their workers, which import an engine for two seconds.
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

from tests import templates
from tests.templates import CONTROLS, TemplateStart, replace_variables
from tuner.workers.processes import fork_server as worker_templates

#: The size of a terminal, which readline sets in processes of xdist.
TERMINAL = ("COLUMNS", "LINES")
# Variables that are read when they are used. Others, such as LD_PRELOAD, matter when a process
# starts: commands that change one are not forked.
_READ_LATE = ("TUNER_", CONTROLS, "PYTEST_", *TERMINAL, "NO_COLOR", "AWS_")
# Modules that commands import when they need them.
_IMPORTED_LATE = (
    "tests.engines.toy",
    "tuner.cli.backends.local",
    "tuner.cli.rendering.comparison",
    "tuner.cli.rendering.progress",
    "tuner.cli.rendering.reports",
    "tuner.cost_models.xgb",
    "tuner.local",
    "tuner.service.loading.limited_loading",
    "tuner.service.worker",
)
# Modules that the functions of workers import when they need them.
_IMPORTED_BY_WORKERS = ("tuner.networks.onnx.cleaning", "onnxslim", "xgboost")
_SERVER = "from tests.forked import serve; serve({fd})"
_MAX_BYTES = 2**20
_MAX_TEMPLATES = 3


class Forked:
    """A process that a fork server started: what ``subprocess.Popen`` is for others."""

    def __init__(self, status: int, out: int, err: int) -> None:
        self._status, self._out, self._err = status, out, err
        self.pid = _read_number(status)
        self.returncode: int | None = None

    def poll(self, secs: float | None = 0.0) -> int | None:
        """Return the exit status, or None if the process still runs after some seconds."""
        if self.returncode is None and select.select([self._status], [], [], secs)[0]:
            self.returncode = _read_number(self._status)
            os.close(self._status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process.

        Raises:
            subprocess.TimeoutExpired: If it still runs.
        """
        if (status := self.poll(timeout)) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return status

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end of the process; return its output and errors."""
        self.wait(timeout)
        return _text(self._out), _text(self._err)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            # It may have been waited for just now.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


Process = Forked | subprocess.Popen[Any]


class ForkServer:
    """A process that forks a child for each command."""

    def __init__(self, root: Path) -> None:
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVER.format(fd=other.fileno())],
                env={**os.environ, "PYTHONPATH": str(root)},
                cwd=root,
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._socket = own
        atexit.register(self.close)

    def close(self) -> None:
        """End the process; commands that still run go on."""
        self._socket.close()
        self._process.wait()

    @staticmethod
    def fits(variables: Mapping[str, str]) -> bool:
        """Return whether a process with these environment variables can be forked.

        Those of this process do: what libraries set in it, they read when they are used.
        """
        return _read_early(variables) == _read_early(os.environ)

    def start(
        self,
        program: tuple[str, ...],
        variables: Mapping[str, str],
        folder: Path,
        log: IO[Any] | None,
        *,
        waits: bool,
    ) -> Forked:
        """Start ``python -m`` with a module and its arguments.

        Args:
            program: ``tuner``, ``api`` or a module of the tests, and arguments.
            variables: The environment.
            folder: Working directory.
            log: A file for output and errors; without one, the process keeps them.
            waits: True if its commits wait for the disk and its workers have a template that
                ends with it, as those of users do.
        """
        request = json.dumps([program, dict(variables), str(folder), waits])
        reader, writer = os.pipe()
        logs = [log.fileno()] * 2 if log else [os.memfd_create(name) for name in ("out", "err")]
        socket.send_fds(self._socket, [request.encode()], [*logs, writer])
        os.close(writer)
        return Forked(reader, *logs)


@lru_cache(maxsize=1)
def fork_server(root: Path) -> ForkServer:
    """Return the server of this process."""
    return ForkServer(root)


def serve(descriptor: int) -> None:
    """Fork a child for each request on a socket, until it is closed."""
    from records import migrations
    from records.storage import connections
    from tests import durability, new_databases
    from tuner.cli import main as program

    for name in _IMPORTED_LATE:
        import_module(name)
    durability.do_not_wait()
    new_databases.create_tables_at_once()
    templates.share_templates()
    programs: dict[str, Callable[[], int | None]] = {
        "tuner": partial(program.run_program, program.make_program())
    }
    # A child that collects garbage would copy the pages of all modules.
    gc.freeze()
    requests = socket.socket(fileno=descriptor)
    shared = _Templates()
    # What forks the command ends with it, and nothing waits for that.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if shared.questions in select.select([requests, shared.questions], [], [])[0]:
            shared.answer()
            continue
        request, descriptors, _, _ = socket.recv_fds(requests, _MAX_BYTES, 3)
        if not request:
            return
        (module, *arguments), variables, folder, waits = json.loads(request)
        if module not in programs:
            # More than a second; most processes of pytest start no API.
            name = module if module.startswith("tests.") else f"{module}.__main__"
            programs[module] = import_module(name).main
        out, err, status = descriptors
        if os.fork() == 0:
            requests.close()
            _watch(status)
            os.dup2(out, 1)
            os.dup2(err, 2)
            for each in (out, err, status):
                os.close(each)
            replace_variables(variables)
            os.chdir(folder)
            sys.argv = ["-c", *arguments]
            if waits:
                connections.SYNCHRONOUS = durability.DURABLE
                migrations.migrate = new_databases.MIGRATE
            else:
                worker_templates._Template = shared.share  # type: ignore[misc, assignment]
            _end(_status_of(programs[module]))
        for each in descriptors:
            os.close(each)


class _Templates:
    """The templates of workers that a fork server keeps for its commands."""

    def __init__(self) -> None:
        self.questions, self._asking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests: dict[str, socket.socket] = {}

    def share(
        self, _log: Path, environ: Mapping[str, str], packages: Iterable[str]
    ) -> "_SharedTemplate":
        """Ask for a template, in the process of a command; its log would be that of the first."""
        question = json.dumps([dict(os.environ), dict(environ), list(packages)])
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with own, theirs:
            socket.send_fds(self._asking, [question.encode()], [theirs.fileno()])
            theirs.close()
            _, (descriptor,), _, _ = socket.recv_fds(own, 1, 1)
        return _SharedTemplate(socket.socket(fileno=descriptor))

    def answer(self) -> None:
        """Start a template unless there is one, and send where it takes requests."""
        question, (descriptor,), _, _ = socket.recv_fds(self.questions, _MAX_BYTES, 1)
        variables, environ, packages = json.loads(question)
        own_variables = dict(os.environ)
        replace_variables(variables)
        key = json.dumps([TemplateStart.variables(environ), packages], sort_keys=True)
        requests = self._requests.pop(key, None)
        if requests is None or not worker_templates._is_wanted(requests):
            requests = _start_template(environ, packages)
        replace_variables(own_variables)
        # The one that was used last is last.
        self._requests[key] = requests
        if len(self._requests) > _MAX_TEMPLATES:
            self._requests.pop(next(iter(self._requests))).close()
        # The command may have been killed.
        with socket.socket(fileno=descriptor) as reply, suppress(OSError):
            socket.send_fds(reply, [b"."], [requests.fileno()])


class _SharedTemplate:
    """A template as a command sees it that shares it with others."""

    def __init__(self, requests: socket.socket) -> None:
        self.requests = requests

    def end(self) -> None:
        """Let the template go on."""
        self.requests.close()


def _start_template(environ: Mapping[str, str], packages: Sequence[str]) -> socket.socket:
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # It waits for what it forks.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with theirs:
        TemplateStart.start(
            None,
            None,
            theirs,
            worker_templates.__name__,
            os.getpid(),
            environ=environ,
            packages=packages,
        )
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for module in _IMPORTED_BY_WORKERS:
        # A template imports the module of each request, and forks no process whose reports would
        # go to a closed socket.
        closed, unread = socket.socketpair()
        closed.close()
        with unread:
            request = json.dumps([module, "", "", []]).encode()
            socket.send_fds(own, [request], [unread.fileno()] * 3)
    return own


def _status_of(run: Callable[[], int | None]) -> int:
    """Run a program to its end, and return its exit status."""
    try:
        return run() or 0
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        return end.code or 0


def _end(status: int) -> NoReturn:
    """End this process as Python does, but for the removal of modules, which takes 0.3 s."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _watch(status: int) -> None:
    """Fork the process of a command, and report its number and how it ended.

    Only the process of the command returns.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        return
    _write_number(status, pid)
    _, ended = os.waitpid(pid, 0)
    _write_number(status, os.waitstatus_to_exitcode(ended))
    os._exit(0)


def _read_early(variables: Mapping[str, str]) -> dict[str, str]:
    late = (*_READ_LATE, "PYTHONPATH")
    return {name: value for name, value in variables.items() if not name.startswith(late)}


def _write_number(descriptor: int, number: int) -> None:
    os.write(descriptor, struct.pack("i", number))


def _read_number(descriptor: int) -> int:
    if not (content := os.read(descriptor, 4)):
        raise RuntimeError("the fork server has ended")
    (number,) = struct.unpack("i", content)
    return int(number)


def _text(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor) as stream:
        return stream.read()
