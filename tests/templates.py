"""Templates of workers for all variables that control the toy engine.

Each set of variables would have a template of its own, which imports for two seconds. Here, workers
get these variables when they are forked.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.workers.processes import fork_server, process_start

#: Variables of the toy engine, which it reads when it uses them; none differs between devices.
CONTROLS = "TOY_"
_CURRENT_FOLDER = fork_server._current_folder
_WORK = fork_server._work


def share_templates() -> None:
    """Have pools of this process, and of those forked from it, share such templates."""
    fork_server.process_start = TemplateStart  # type: ignore[attr-defined, assignment]
    fork_server._current_folder = _current_place


def serve(descriptor: int, parent: int) -> None:
    """Be a template whose workers have the controls of their requests."""
    fork_server._work = _work
    fork_server.serve(descriptor, parent)


def replace_variables(variables: Mapping[str, str]) -> None:
    """Give this process other environment variables."""
    os.environ.clear()
    os.environ.update(variables)


class TemplateStart:
    """Replacement of the module that starts processes, which starts these templates."""

    @staticmethod
    def variables(more: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that a template has in common with its workers."""
        return _without_controls(process_start.variables(more))

    @staticmethod
    def start(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        """Start a template, see :func:`process_start.start`."""
        interpreter, log, stream, _, *others = args
        return process_start.start(interpreter, log, stream, __name__, *others, **options)


def _current_place() -> str:
    """Return the current folder, and the controls of a worker."""
    controls = {name: value for name, value in os.environ.items() if name.startswith(CONTROLS)}
    return json.dumps([_CURRENT_FOLDER(), controls])


def _work(files: Sequence[int], folder: str, current: str, arguments: Sequence[Any]) -> None:
    place, controls = json.loads(current)
    replace_variables(_without_controls(os.environ) | controls)
    _WORK(files, folder, place, arguments)


def _without_controls(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if not name.startswith(CONTROLS)}
