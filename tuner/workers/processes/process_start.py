"""Start of worker processes, by the Python of any environment."""

import os
import socket
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tuner.engines.environments import Interpreter
from tuner.workers.confinement.environment import scrubbed
from tuner.workers.processes import python_command

# The coordinator decides what Ctrl-C means, from the first instruction on.
_QUIET = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"

_CALL = "from {module} import serve; serve({descriptor}, *{arguments!r})\n"


def start(
    interpreter: Interpreter | None,
    log: Path | None,
    stream: socket.socket,
    module: str,
    *arguments: Any,
    environ: Mapping[str, str] | None = None,
    packages: Iterable[str] = (),
) -> subprocess.Popen[bytes]:
    """Start a process that calls ``serve(descriptor, *arguments)`` of a module.

    It has a scrubbed environment, no input, and no open file but the other end of a connection.

    Args:
        interpreter: Python that runs it; None for that of this process.
        log: File that its output is appended to; None for the output of this process.
        stream: The connection.
        *arguments: Texts and numbers.
        environ: Variables beside those of this process.
        packages: Packages that it imports as this process does, see
            :func:`python_command.run_code`.

    Raises:
        OSError: If the process cannot be started.
    """
    call = _CALL.format(module=module, descriptor=stream.fileno(), arguments=arguments)
    with ExitStack() as stack:
        output = None if log is None else stack.enter_context(log.open("ab"))
        return subprocess.Popen(
            _command(interpreter, call, packages),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[stream.fileno()],
            env=variables(environ or {}),
        )


def variables(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process: what it may have of this one's, and more variables."""
    return {**scrubbed(os.environ), **more}


def _command(interpreter: Interpreter | None, call: str, packages: Iterable[str]) -> list[str]:
    """Return the command line of a process.

    A Python of another environment runs isolated: PYTHONPATH may name packages of this one.
    """
    if interpreter is None:
        return python_command.run_code(_QUIET + call, packages=packages)
    code = _QUIET + python_command.finder(interpreter.folders) + call
    return [interpreter.path, "-I", "-c", code]
