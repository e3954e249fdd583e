"""Installation of engine environments: virtual environments with pinned requirements."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tuner.engines import environments
from tuner.engines.environments import Environment
from tuner.errors import RequestError, WorkError
from tuner.workers.confinement.environment import without_current_folder
from tuner.workers.processes import python_command

# The Python version that TVM 0.19 has wheels for.
_PYTHON = (3, 11)


def install(environment: Environment, python: str | None = None) -> None:
    """Create an environment, replacing an existing one once the new one is complete.

    The output of pip goes to stderr.

    Args:
        python: Python interpreter to create it with; None: the present one if its version fits,
            else the first ``python3.11`` on the path.

    Raises:
        RequestError: If the interpreter is missing, or the folder has other contents.
        WorkError: If a step of the installation fails.
    """
    chosen = python or _find_python()
    folder = environment.folder
    _check_folder(environment)
    with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as temporary:
        new = Path(temporary) / folder.name
        _run(python_command.run_module("venv", str(new), python=chosen))
        new_python = Environment.within(new, environment.name).python
        requirements = str(environments.requirements_file(environment.name))
        options = ["--quiet", "--disable-pip-version-check", "--no-input"]
        arguments = ["install", *options, "-r", requirements, environments.message_requirement()]
        _run(python_command.run_module("pip", *arguments, python=str(new_python)))
        environment.mark_managed(new)
        if folder.exists():
            folder.rename(Path(temporary) / "old")
        new.rename(folder)


def _check_folder(environment: Environment) -> None:
    """Refuse to replace a folder that this module did not create.

    Raises:
        RequestError: If the folder has other contents, or cannot be created.
    """
    folder = environment.folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        is_free = not folder.exists() or environment.is_managed or not any(folder.iterdir())
    except OSError as error:
        raise RequestError(f"cannot make an environment in {folder}: {error.strerror}") from error
    if not is_free:
        raise RequestError(
            f"{folder} exists and is not an environment of tuner engine install; choose another "
            "folder, or remove it"
        )


def _find_python() -> str:
    if sys.version_info[:2] == _PYTHON:
        return sys.executable
    name = "python" + ".".join(map(str, _PYTHON))
    path = shutil.which(name)
    if path is None:
        raise RequestError(
            f"TVM 0.19 has packages for Python {name.removeprefix('python')} only, and {name} is "
            "not on the path; install it, or give the path of one"
        )
    return path


def _run(command: list[str]) -> None:
    """Run a step with its output on stderr."""
    try:
        environ = without_current_folder(os.environ)
        done = subprocess.run(command, stdout=sys.stderr, env=environ, check=False)
    except OSError as error:
        raise RequestError(f"cannot run {command[0]}: {error.strerror}") from error
    if done.returncode:
        raise WorkError(f"{' '.join(command[:4])} ... failed with status {done.returncode}")
