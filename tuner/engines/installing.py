"""Make the environment of an engine: a virtual environment with exactly what it needs."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tuner.engines import environments
from tuner.engines.environments import Environment
from tuner.errors import RequestError, WorkError

# That has wheels for TVM 0.19.
_PYTHON = (3, 11)


def install(environment: Environment, python: str | None = None) -> None:
    """Make an environment anew, in the place of one that is there.

    What pip says goes to stderr. One that is there stays as it is until the new one is complete.

    Args:
        environment: What to make, and where.
        python: The Python to make it with; None: ours, or the first ``python3.11`` on the path.

    Raises:
        RequestError: If there is no such Python, or something else is in that place.
        WorkError: If it cannot be made.
    """
    chosen = python or _find_python()
    folder = environment.folder
    _check_place(environment)
    with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as beside:
        made = Path(beside) / folder.name
        _run([chosen, "-m", "venv", str(made)])
        own = Environment.within(made, environment.name).python
        _run([str(own), "-m", "pip", *_pip_arguments(environment.name)])
        environment.mark_managed(made)
        if folder.exists():
            folder.rename(Path(beside) / "old")
        made.rename(folder)


def _check_place(environment: Environment) -> None:
    """Refuse to take the place of what was not made here: it would be removed.

    Raises:
        RequestError: If so, or if nothing can be made there.
    """
    folder = environment.folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        is_free = not folder.exists() or environment.is_managed or not any(folder.iterdir())
    except OSError as error:
        raise RequestError(f"cannot make an environment in {folder}: {error.strerror}") from error
    if not is_free:
        raise RequestError(
            f"{folder} exists and is not an environment of tuner engine install; name another "
            "folder, or remove it"
        )


def _find_python() -> str:
    if sys.version_info[:2] == _PYTHON:
        return sys.executable
    name = "python" + ".".join(map(str, _PYTHON))
    found = shutil.which(name)
    if found is None:
        raise RequestError(
            f"TVM 0.19 has packages for Python {name.removeprefix('python')} only, and there is "
            f"no {name} on the path; install it, or name one by --python"
        )
    return found


def _pip_arguments(name: str) -> list[str]:
    requirements = str(environments.requirements_file(name))
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    return ["install", *quiet, "-r", requirements, environments.pebble_requirement()]


def _run(command: list[str]) -> None:
    """Run a step and let it print."""
    try:
        done = subprocess.run(command, stdout=sys.stderr, check=False)
    except OSError as error:
        raise RequestError(f"cannot run {command[0]}: {error.strerror}") from error
    if done.returncode:
        raise WorkError(f"{' '.join(command[:4])} ... failed with status {done.returncode}")
