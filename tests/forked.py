"""Commands in processes forked from one that has imported the program.

Importing it takes more than a second, and the tests run hundreds of commands.
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

#: The size of a terminal, which readline sets in processes of xdist.
TERMINAL = ("COLUMNS", "LINES")
# Variables that are read when they are used. Others, such as LD_PRELOAD, matter when a process
# starts: commands that change one are not forked.
_READ_LATE = ("TUNER_", "TOY_", "PYTEST_", *TERMINAL, "NO_COLOR", "AWS_")
# Modules that commands import when they need them.
_IMPORTED_LATE = (
    "tests.engines.toy",
    "tuner.cli.backends.local",
    "tuner.cli.rendering.comparison",
    "tuner.cli.rendering.progress",
    "tuner.cli.rendering.reports",
    "tuner.cost_models.xgb",
    "tuner.local",
)
_SERVER = "from tests.forked import serve; serve({fd})"
_MAX_BYTES = 2**20


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

    def run(
        self, arguments: list[str], variables: Mapping[str, str], folder: Path, timeout_secs: float
    ) -> tuple[int, str, str]:
        """Run a command to its end; return exit status, output and errors.

        Raises:
            subprocess.TimeoutExpired: If it hangs; it is killed.
        """
        request = json.dumps([arguments, dict(variables), str(folder)]).encode()
        reader, writer = os.pipe()
        with TemporaryFile() as out, TemporaryFile() as err, open(reader, "rb") as status:  # noqa: PTH123
            descriptors = [out.fileno(), err.fileno(), writer]
            socket.send_fds(self._socket, [request], descriptors)
            os.close(writer)
            pid = int(status.readline())
            if not select.select([status], [], [], timeout_secs)[0]:
                os.killpg(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(arguments, timeout_secs)
            code = int(status.readline())
            return code, _text(out.fileno()), _text(err.fileno())


@lru_cache(maxsize=1)
def fork_server(root: Path) -> ForkServer:
    """Return the server of this process."""
    return ForkServer(root)


def serve(descriptor: int) -> None:
    """Fork a child for each request on a socket, until it is closed."""
    from tests import durability, new_databases
    from tuner.cli import main as program

    for name in _IMPORTED_LATE:
        import_module(name)
    durability.do_not_wait()
    new_databases.create_tables_at_once()
    commands = program.make_program()
    # A child that collects garbage would copy the pages of all modules.
    gc.freeze()
    requests = socket.socket(fileno=descriptor)
    # What forks the command ends with it, and nothing waits for that.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, _MAX_BYTES, 3)
        if not request:
            return
        out, err, status = descriptors
        if os.fork() == 0:
            requests.close()
            _watch(status)
            os.dup2(out, 1)
            os.dup2(err, 2)
            for each in (out, err, status):
                os.close(each)
            arguments, variables, folder = json.loads(request)
            os.environ.clear()
            os.environ.update(variables)
            os.chdir(folder)
            sys.argv = ["-c", *arguments]
            _end(_status_of(program.run_program, commands))
        for each in descriptors:
            os.close(each)


def _status_of(run: Callable[[Any], None], commands: Any) -> int:
    """Run a command to its end, and return its exit status."""
    try:
        run(commands)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        return end.code or 0
    return 0


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
    os.write(status, f"{pid}\n".encode())
    _, ended = os.waitpid(pid, 0)
    os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
    os._exit(0)


def _read_early(variables: Mapping[str, str]) -> dict[str, str]:
    late = (*_READ_LATE, "PYTHONPATH")
    return {name: value for name, value in variables.items() if not name.startswith(late)}


def _text(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, closefd=False) as stream:
        return stream.read()
