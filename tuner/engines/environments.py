"""Which Python runs an engine: ours, or that of an environment of its own.

Two TVMs have one name, so that at most one can be installed beside the tuner. An engine for
another one runs in processes of an environment that holds that TVM, what it needs, and what
workers import; the tuner itself is found where it is.
"""

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import RequestError
from tuner.executors.process import Interpreter

RELAX, RELAY = "relax", "relay"
ENGINES = {RELAX: "tuner.engines.relax.worker", RELAY: "tuner.engines.relay.worker"}
DEFAULT = RELAX
# Engines with an environment of their own; it has the name of the engine.
APART = (RELAY,)
# What pip made, and of which requirements, once it is complete.
_STAMP = "requirements.sha256"


@dataclass(frozen=True)
class Environment:
    """A virtual environment for an engine, there or not."""

    name: str
    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def is_complete(self) -> bool:
        """Whether it was made to its end, of what this version asks for."""
        try:
            stamp = (self.folder / _STAMP).read_text()
        except OSError:
            return False
        return self.python.exists() and stamp == self._wanted()

    def complete(self) -> None:
        """Note that it is."""
        (self.folder / _STAMP).write_text(self._wanted())

    def _wanted(self) -> str:
        return hashlib.sha256(requirements_of(self.name).read_bytes()).hexdigest()


def environment_in(data_dir: Path, name: str) -> Environment:
    """Return where the environment of an engine is, or will be."""
    return Environment(name, data_dir / "engines" / name)


def requirements_of(name: str) -> Path:
    """Return the file that pins what is in an environment."""
    return Path(__file__).parent / name / "requirements.txt"


def parse(text: str) -> tuple[str, str]:
    """Split an engine as a user names it into a module and the name of its environment.

    Args:
        text: ``relax``, ``relay``, a module, or ``ENVIRONMENT:MODULE``.

    Raises:
        RequestError: If there is no such engine.
    """
    environment, _, module = text.rpartition(":")
    module = ENGINES.get(module, module)
    if environment and environment not in APART:
        raise RequestError(
            f"there is no environment {environment!r} for engines; there is {', '.join(APART)}"
        )
    if not environment and not _exists(module):
        raise RequestError(
            f"there is no engine {text!r}; engines are {', '.join(ENGINES)}, or a module"
        )
    return module, environment or environment_of(module)


def environment_of(module: str) -> str:
    """Return the environment that an engine of ours runs in; empty for ours."""
    return next((name for name in APART if ENGINES[name] == module), "")


def interpreter_of(
    environment: str, module: str, data_dir: Path, python: str | None
) -> Interpreter | None:
    """Return the Python that runs an engine; None: that of this process.

    Args:
        environment: The name of its environment; empty for ours.
        module: The engine.
        data_dir: Where environments are made.
        python: The interpreter, if the settings name one.

    Raises:
        RequestError: If there is none; the message says what to type.
    """
    if not environment:
        return None
    made = environment_in(data_dir, environment)
    if python is None and not made.is_complete:
        raise RequestError(
            f"the engine {environment} is not installed; type: tuner engine install {environment} "
            f"(or name a Python that has it: TUNER_{environment.upper()}_PYTHON)"
        )
    if python is not None and not Path(python).is_file():
        raise RequestError(f"TUNER_{environment.upper()}_PYTHON names {python}, which is no file")
    packages = {"tuner", module.split(".", maxsplit=1)[0]}
    return Interpreter(
        str(python or made.python), {package: _folder_of(package) for package in sorted(packages)}
    )


def _folder_of(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise RequestError(f"there is no package {package!r}")
    return str(Path(next(iter(spec.submodule_search_locations))).parent)


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
