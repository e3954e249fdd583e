"""Which Python runs an engine: ours, or that of an environment of its own.

Two TVMs have one name, so that at most one can be installed beside the tuner. An engine for
another one runs in processes of an environment that holds that TVM, what it needs, and what
workers import; the tuner itself is found where it is.
"""

import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tuner.errors import RequestError

RELAX, RELAY = "relax", "relay"
ENGINES = {RELAX: "tuner.engines.relax.worker", RELAY: "tuner.engines.relay.worker"}
DEFAULT = RELAX
# Engines with an environment of their own; it has the name of the engine.
APART = (RELAY,)
_STAMP = "requirements.sha256"


@dataclass(frozen=True)
class Interpreter:
    """A Python of another environment.

    Attributes:
        path: Its program.
        folders: Where to find packages of ours, by their names; all others are its own.
    """

    path: str
    folders: Mapping[str, str]


@dataclass(frozen=True)
class Environment:
    """A virtual environment for an engine, there or not.

    Attributes:
        name: Of the engine.
        python: Its interpreter.
    """

    name: str
    python: Path

    @classmethod
    def within(cls, folder: Path, name: str) -> "Environment":
        """Return the environment of an engine in a folder of its own."""
        return cls(name, folder / "bin" / "python")

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self.python.parents[1]

    @property
    def state(self) -> str:
        """``ready``, ``missing``, or ``outdated`` if this version asks for other packages.

        One that somebody else made is ready if it is there.
        """
        if not self.python.is_file():
            return "missing"
        made_of = self._stamp.read_text() if self.is_ours else stamp_of(self.name)
        return "ready" if made_of == stamp_of(self.name) else "outdated"

    @property
    def is_ours(self) -> bool:
        """Whether ``tuner engine install`` made it."""
        return self._stamp.is_file()

    @property
    def _stamp(self) -> Path:
        return self.folder / _STAMP

    def check(self) -> None:
        """Refuse one that cannot be used.

        Raises:
            RequestError: If so; the message says what to type.
        """
        if self.state != "ready":
            raise RequestError(
                f"the environment of the engine {self.name} is {self.state}: {self.python}; type: "
                f"tuner engine install {self.name}, or name a Python that has it by "
                f"{variable_of(self.name)}"
            )

    def stamp(self, folder: Path) -> None:
        """Note in a folder of what it was made."""
        (folder / _STAMP).write_text(stamp_of(self.name))


def default_python(data_dir: Path, name: str) -> Path:
    """Return the interpreter of an environment that ``tuner engine install`` makes."""
    return Environment.within(data_dir / "engines" / name, name).python


def variable_of(name: str) -> str:
    """Return the environment variable that names the Python of an engine."""
    return f"TUNER_{name.upper()}_PYTHON"


def requirements_of(name: str) -> Path:
    """Return the file that pins what is in an environment."""
    return Path(__file__).parent / name / "requirements.txt"


def pebble() -> str:
    """Return the requirement of what workers are spoken to by: it is to be that of both sides."""
    return f"pebble=={version('pebble')}"


def stamp_of(name: str) -> str:
    """Hash what an environment is made of."""
    content = requirements_of(name).read_bytes() + pebble().encode()
    return hashlib.sha256(content).hexdigest()


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


def interpreter_of(environment: str, module: str, python: Path) -> Interpreter | None:
    """Return the Python that runs an engine; None: that of this process.

    Args:
        environment: The name of its environment; empty for ours.
        module: The engine.
        python: The interpreter of that environment.

    Raises:
        RequestError: If it is not there; the message says what to type.
    """
    if not environment:
        return None
    Environment(environment, python).check()
    packages = {"tuner", module.partition(".")[0]}
    return Interpreter(str(python), {package: _folder_of(package) for package in sorted(packages)})


def contents_of(interpreter: Interpreter | None) -> list[str]:
    """Return which Python it is and its packages with their versions; empty for ours."""
    if interpreter is None:
        return []
    packages = Path(interpreter.path).parents[1].glob("lib/python*/site-packages/*.dist-info")
    return [interpreter.path, *sorted(path.name for path in packages)]


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
