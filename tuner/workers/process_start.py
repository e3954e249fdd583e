"""Start of worker processes, by the Python of any environment."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tuner.engines.environments import Interpreter
from tuner.workers.environment import scrubbed

# The coordinator decides what Ctrl-C means, from the first instruction on.
_QUIET = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"

# Finds what this process finds, wherever that is.
_SAME_PATH = "import sys; sys.path[:] = {path!r}\n"

# Lets another environment import the tuner's packages, and nothing else that lies beside them.
_OTHER_PATH = """\
import sys
from importlib.machinery import PathFinder

class TunerFinder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        folder = None if path else {folders!r}.get(name)
        return folder and PathFinder.find_spec(name, [folder])

sys.meta_path.append(TunerFinder)
"""

_CALL = "from {module} import serve; serve({descriptor}, *{arguments!r})\n"


def start(
    interpreter: Interpreter | None,
    log: Path | None,
    stream: socket.socket,
    module: str,
    *arguments: Any,
    folder: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process that calls ``serve(descriptor, *arguments)`` of a module.

    It has a scrubbed environment, no input, and no open file but the other end of a connection.

    Args:
        interpreter: Python that runs it; None for that of this process.
        log: File that its output is appended to; None for the output of this process.
        stream: The connection.
        module: Module of the function.
        *arguments: Texts and numbers.
        folder: Folder for its temporary files; None for that of this process.

    Raises:
        OSError: If the process cannot be started.
    """
    environ = scrubbed(os.environ) | ({} if folder is None else {"TMPDIR": str(folder)})
    call = _CALL.format(module=module, descriptor=stream.fileno(), arguments=arguments)
    with ExitStack() as stack:
        output = None if log is None else stack.enter_context(log.open("ab"))
        return subprocess.Popen(
            _command(interpreter, call),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[stream.fileno()],
            env=environ,
        )


def _command(interpreter: Interpreter | None, call: str) -> list[str]:
    """Return the command line of a process.

    A Python of another environment runs isolated: PYTHONPATH may name packages of this one.
    """
    if interpreter is None:
        return [sys.executable, "-c", _QUIET + _SAME_PATH.format(path=sys.path) + call]
    path = _OTHER_PATH.format(folders=dict(interpreter.folders))
    return [interpreter.path, "-I", "-c", _QUIET + path + call]
