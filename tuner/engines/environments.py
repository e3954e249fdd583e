"""The Python environments that engines run in: the tuner's own, or a separate one.

All versions of TVM share one package name, so that only one can be installed with the tuner. An
engine for another version runs in processes of an environment that holds that TVM, its
requirements, and what workers import; the tuner itself is imported from its own folder.
"""

import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import RequestError

RELAX, RELAY = "relax", "relay"
ENGINES = {RELAX: "tuner.engines.relax.worker", RELAY: "tuner.engines.relay.worker"}
DEFAULT_ENGINE = RELAX
# Names of environments: the names of their engines.
SEPARATE_ENVIRONMENTS = (RELAY,)
_DIGEST_FILE = "requirements.sha256"


@dataclass(frozen=True)
class Interpreter:
    """The Python of another environment.

    Attributes:
        path: Path of its program.
        folders: Folders of the packages that it takes from this environment, by package name.
    """

    path: str
    folders: Mapping[str, str]


@dataclass(frozen=True)
class Environment:
    """A virtual environment for an engine, which need not exist.

    Attributes:
        name: Name of the engine.
        python: Path of its interpreter.
    """

    name: str
    python: Path

    @classmethod
    def within(cls, folder: Path, name: str) -> "Environment":
        """Return the environment of an engine in a folder of its own."""
        return cls(name, folder / "bin" / "python")

    @property
    def folder(self) -> Path:
        """The folder of the environment."""
        return self.python.parents[1]

    @property
    def state(self) -> str:
        """``ready``, ``missing``, or ``outdated`` if this version has other requirements.

        An environment that ``tuner engine install`` did not make is ready if it exists.
        """
        if not self.python.is_file():
            return "missing"
        current = requirements_digest(self.name)
        installed = self._digest_file.read_text() if self.is_managed else current
        return "ready" if installed == current else "outdated"

    @property
    def is_managed(self) -> bool:
        """True if ``tuner engine install`` made the environment."""
        return self._digest_file.is_file()

    @property
    def _digest_file(self) -> Path:
        return self.folder / _DIGEST_FILE

    def check(self) -> None:
        """Check that the environment can be used.

        Raises:
            RequestError: If it cannot; the message says what to type.
        """
        if self.state != "ready":
            raise RequestError(
                f"the environment of the engine {self.name} is {self.state}: {self.python}; type: "
                f"tuner engine install {self.name}, or name a Python that has it by "
                f"{python_variable(self.name)}"
            )

    def mark_managed(self, folder: Path) -> None:
        """Note in a folder the requirements that it was made of."""
        (folder / _DIGEST_FILE).write_text(requirements_digest(self.name))


def default_python(data_dir: Path, name: str) -> Path:
    """Return the interpreter of an environment that ``tuner engine install`` makes."""
    return Environment.within(data_dir / "engines" / name, name).python


def python_variable(name: str) -> str:
    """Return the environment variable that names the Python of an engine."""
    return f"TUNER_{name.upper()}_PYTHON"


def requirements_file(name: str) -> Path:
    """Return the file that pins the packages of an environment."""
    return Path(__file__).parent / name / "requirements.txt"


def message_requirement() -> str:
    """Return the requirement of msgspec, by which workers answer, in the version of this side."""
    from importlib.metadata import version

    return f"msgspec=={version('msgspec')}"


def requirements_digest(name: str) -> str:
    """Hash the requirements of an environment."""
    content = requirements_file(name).read_bytes() + message_requirement().encode()
    return hashlib.sha256(content).hexdigest()


def parse(text: str) -> tuple[str, str]:
    """Split an engine as a user names it into a module and the name of its environment.

    Args:
        text: ``relax``, ``relay``, a module, or ``ENVIRONMENT:MODULE``.

    Raises:
        RequestError: If the environment or the engine does not exist.
    """
    environment, _, module = text.rpartition(":")
    module = ENGINES.get(module, module)
    if environment and environment not in SEPARATE_ENVIRONMENTS:
        raise RequestError(
            f"unknown environment {environment!r} for engines; "
            f"environments are {', '.join(SEPARATE_ENVIRONMENTS)}"
        )
    if not environment and not _exists(module):
        raise RequestError(
            f"unknown engine {text!r}; engines are {', '.join(ENGINES)}, or a module"
        )
    return module, environment or environment_of(module)


def environment_of(module: str) -> str:
    """Return the environment that an engine of the tuner runs in; empty for the tuner's own."""
    return next((name for name in SEPARATE_ENVIRONMENTS if ENGINES[name] == module), "")


def interpreter_of(environment: str, module: str, python: Path) -> Interpreter | None:
    """Return the Python that runs an engine; None for that of this process.

    Args:
        environment: Name of its environment; empty for the tuner's own.
        python: Interpreter of that environment.

    Raises:
        RequestError: If the environment cannot be used; the message says what to type.
    """
    if not environment:
        return None
    Environment(environment, python).check()
    packages = {"tuner", module.partition(".")[0]}
    return Interpreter(str(python), {package: _folder_of(package) for package in sorted(packages)})


def contents_of(interpreter: Interpreter | None) -> list[str]:
    """Return the path of a Python, and its packages with versions; empty for None."""
    if interpreter is None:
        return []
    packages = Path(interpreter.path).parents[1].glob("lib/python*/site-packages/*.dist-info")
    return [interpreter.path, *sorted(path.name for path in packages)]


def _folder_of(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise RequestError(f"package {package!r} does not exist")
    return str(Path(next(iter(spec.submodule_search_locations))).parent)


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
