"""Paths that workers may reach: the system, Python's packages, and what their calls need.

The folders of a user are not among them, and neither are the config file, which may hold the
password of the database, and the database itself.
"""

import logging
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import make_url

from tuner.build_cache.local import LocalTier
from tuner.engines.environments import Interpreter
from tuner.errors import RequestError
from tuner.files.process_folder import shared_folder
from tuner.files.process_tags import process_tag
from tuner.settings import Settings, config_file
from tuner.workers.confinement import sandbox
from tuner.workers.confinement.sandbox import Sandbox
from tuner.workers.exchange import Exchange
from tuner.workers.processes.python_command import OWN_PACKAGES, import_folders

_SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/sys", "/nix/store",
    "/gnu/store",
    *(f"/etc/{name}" for name in (
        "alternatives", "debian_version", "gai.conf", "group", "host.conf", "hosts", "ld.so.cache",
        "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "locale.alias", "localtime", "nsswitch.conf",
        "nvidia", "os-release", "passwd", "protocols", "resolv.conf", "services",
    )),
)  # fmt: skip
# Variables with folders of programs and libraries, and with the folder of an installation.
_SEARCH_PATHS = ("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "TVM_LIBRARY_PATH")
_HOMES = ("CUDA_PATH", "CUDA_HOME", "TVM_HOME", "CONDA_PREFIX", "VIRTUAL_ENV")
_BESIDE_PROGRAMS = ("lib", "lib64", "libexec", "include")
_PARTS_OF_ENVIRONMENT = ("bin", *_BESIDE_PROGRAMS, "share", "pyvenv.cfg")
_MAX_NEIGHBOURS = 10_000

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Access:
    """Rights that the calls of one pool need in addition to the rights of all workers.

    Attributes:
        files: Files, or folders of the tuner's own, that they read.
        beside: Files that they read with those beside them, such as the weights of a model.
        writes: Folders that they read and write.
        tcp_ports: Ports that they connect to; empty for no network.
        pins_threads: True if they time kernels, whose threads stay on their cores.
    """

    files: tuple[Path, ...] = ()
    beside: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    tcp_ports: tuple[int, ...] = ()
    pins_threads: bool = False


def scratch_folder(data_dir: Path) -> Path:
    """Return the folder of this process's artifacts: machines may share a data directory."""
    return data_dir / "scratch" / process_tag()


def models_folder(data_dir: Path) -> Path:
    """Return the folder of cleaned models."""
    return data_dir / "models"


def references_folder(data_dir: Path) -> Path:
    """Return the folder of expected outputs that are kept."""
    return data_dir / "references"


def model_access(*references: str, alone: bool = False) -> Access:
    """Return the access that loading models takes.

    Args:
        references: Paths of model files, or names such as ``zoo:NAME``.
        alone: True for files of other users, which must not have their weights beside them.
    """
    named = (Path(text).absolute() for text in references if not text.startswith("zoo:"))
    paths = tuple(path for path in named if shared_folder() not in path.parents)
    return Access(files=paths) if alone else Access(beside=paths)


def timing_access(library: Path) -> Access:
    """Return the access that timing a library takes."""
    return Access(files=(library.absolute(),), pins_threads=True)


def sandbox_of(
    settings: Settings, access: Access, interpreter: Interpreter | None
) -> Sandbox | None:
    """Return the sandbox of the workers of a pool; None if the settings switch it off.

    Raises:
        RequestError: If the settings require one, and the kernel lacks it.
    """
    if settings.worker_sandbox == "off":
        return None
    is_required = settings.worker_sandbox == "required"
    check_kernel(is_required=is_required)
    paths = [config_file(os.environ), settings.data_dir, Path(os.path.expanduser("~"))]  # noqa: PTH111
    if settings.signing_key is not None:
        paths.append(settings.signing_key)
    url = make_url(settings.database or "sqlite://")
    if url.get_backend_name() == "sqlite" and url.database:
        paths += [Path(url.database + suffix) for suffix in ("", "-wal", "-shm", "-journal")]
    private = [path.resolve() for path in paths]
    reads: list[str | Path] = [*_SYSTEM, *_installed(private)]
    reads += [*_engine_folders(settings, interpreter, private), *settings.worker_paths]
    reads += access.files
    for file in access.beside:
        reads += _with_neighbours(file, private)
    writes = (*access.writes, shared_folder())
    for folder in access.writes:
        make_folder(folder)
    lists: list[str | Path] = [*import_folders()]
    for package in (*OWN_PACKAGES, settings.engine_package):
        lists += (path.parent for path in _folders_of(package))
    if interpreter is not None:
        lists += interpreter.folders.values()
    return Sandbox(
        reads=_texts(reads),
        lists=_texts(lists),
        writes=_texts(writes),
        tcp_ports=access.tcp_ports,
        pins_threads=access.pins_threads,
        is_required=is_required,
    )


def new_exchange(settings: Settings) -> Exchange:
    """Make folders for files of a pool's calls, in the build cache, which links what it keeps."""
    exchange = Exchange(LocalTier(settings.cache_dir, lambda _: None).make_folder())
    try:
        exchange.make()
    except OSError:
        exchange.remove()
        raise
    return exchange


def check_kernel(*, is_required: bool) -> None:
    """Check that the kernel can confine workers; say so in the log if it cannot, once.

    Raises:
        RequestError: If it is required, and the kernel cannot.
    """
    problem = sandbox.shortcoming()
    if problem and is_required:
        raise RequestError(
            f"worker_sandbox is required, but this kernel cannot confine workers: {problem}"
        )
    if problem:
        _report_once(problem)


@lru_cache(maxsize=1)
def _report_once(problem: str) -> None:
    _LOG.warning("workers are confined in part: %s", problem)


def _installed(private: Iterable[Path]) -> Iterator[Path]:
    """Yield folders of Python and its packages, and of programs and libraries in use."""
    private = list(private)
    installation = list(_environments(private, sys.prefix, sys.base_prefix))
    installation.append(Path(sysconfig.get_path("stdlib")))
    yield from installation
    for folder in map(Path, import_folders()):
        if any(folder.is_relative_to(prefix) for prefix in installation):
            continue
        if _is_installed_into(folder) and not _holds(folder, private):
            yield folder
        else:
            yield from _packages_in(folder)
    for package in OWN_PACKAGES:
        yield from _folders_of(package)
    yield from (path for path in _named_by_variables(os.environ) if not _holds(path, private))


def _is_installed_into(folder: Path) -> bool:
    """Return whether packages were installed into a folder, as by ``pip install --target``."""
    is_named = folder.name in ("site-packages", "dist-packages")
    return is_named or any(folder.glob("*.dist-info"))


def _environments(private: Iterable[Path], *prefixes: str | Path) -> Iterator[Path]:
    """Yield the folders of Python environments; of one with other things, its own parts.

    An environment may have been made in the folder of a user, or in that of the data directory; the
    Python of ``/bin`` has the whole system for its folder.
    """
    private = list(private)
    for prefix in map(Path, prefixes):
        if not _holds(prefix, private):
            yield prefix
            continue
        parts = (prefix / name for name in _PARTS_OF_ENVIRONMENT)
        yield from (part for part in parts if not _holds(part, private))


def _named_by_variables(environ: Mapping[str, str]) -> Iterator[Path]:
    for name in (*_SEARCH_PATHS, *_HOMES):
        for text in environ.get(name, "").split(os.pathsep):
            folder = Path(text)
            if not folder.is_absolute():
                continue
            yield folder
            if folder.name == "bin":
                # A toolchain in /opt/NAME has these beside the folder of its programs.
                yield from (folder.with_name(name) for name in _BESIDE_PROGRAMS)


def _packages_in(folder: Path) -> Iterator[Path]:
    """Yield the modules and packages in a folder that may hold other things as well."""
    try:
        entries = list(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.suffix in (".py", ".so") or (entry / "__init__.py").is_file():
            yield entry


def _engine_folders(
    settings: Settings, interpreter: Interpreter | None, private: Iterable[Path]
) -> Iterator[Path]:
    """Yield the folders of an engine's package, and of its environment."""
    yield from _folders_of(settings.engine_package)
    if interpreter is None:
        return
    python = Path(interpreter.path)
    yield from _environments(private, python.parents[1], python.resolve().parents[1])
    for name, folder in interpreter.folders.items():
        yield Path(folder) / name


def _folders_of(package: str) -> list[Path]:
    spec = find_spec(package)
    if spec is None:
        return []
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    return folders or [Path(spec.origin or "/usr")]


def _with_neighbours(file: Path, private: Iterable[Path]) -> Iterator[Path]:
    """Yield a file, and what else is in its folder; links lead to files elsewhere."""
    private = [*private]
    yield file
    folder = file.parent
    is_open = not _holds(folder, private)
    if is_open:
        yield folder
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(_MAX_NEIGHBOURS), entries, strict=False):
                path = Path(entry.path).resolve()
                if (not is_open or entry.is_symlink()) and path.is_file() and path not in private:
                    yield path
    except OSError as error:
        _LOG.debug("cannot list %s: %s", folder, error)


def _holds(folder: Path, private: Iterable[Path]) -> bool:
    """Return whether a folder is or contains a private path."""
    resolved = folder.resolve()
    return any(resolved == path or resolved in path.parents for path in private)


def make_folder(folder: Path) -> None:
    """Make a folder that workers reach: only what exists can be permitted."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _LOG.debug("cannot make %s: %s", folder, error)


def _texts(paths: Iterable[str | Path]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(str, paths)))
