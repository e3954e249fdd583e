"""Inputs of cache keys: the tuner's code, packages, programs and the processor."""

import hashlib
import os
import shutil
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from tuner.library.processors import cpu_fields

_CPU_FIELDS = ("model name", "cpu family", "model", "stepping", "flags", "Features", "CPU part")


@lru_cache(maxsize=16)
def code_of(module: str) -> str:
    """Hash the names, sizes and times of the source files of a module's package."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    lines = []
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        stat = path.stat()
        lines.append(f"{path} {stat.st_size} {stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def versions_of(*packages: str) -> dict[str, str | None]:
    """Return the version of each package that is installed; None for the others."""
    return {package: _version(package) for package in packages}


def binaries_of(*packages: str) -> dict[str, list[list[object]]]:
    """Return paths, sizes and times of the shared libraries of packages.

    A package that is built from source may change under the same version.
    """
    return {package: _binaries(package) for package in packages}


def tool(name: str) -> list[object]:
    """Return path, size and time of the first program of a name on the path; empty for none."""
    path = shutil.which(name)
    if path is None:
        return []
    return [path, *_size_and_time(Path(path))]


def processor() -> dict[str, object]:
    """Describe the processor of this machine."""
    fields = cpu_fields()
    return {
        "machine": os.uname().machine,
        "n_cores": len(os.sched_getaffinity(0)),
        "cpu": [fields.get(name) for name in _CPU_FIELDS],
    }


def _binaries(package: str) -> list[list[object]]:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).parent
    paths = sorted([*folder.glob("*.so*"), *folder.glob("lib/*.so*")])
    return [[str(path), *_size_and_time(path)] for path in paths if path.is_file()]


def _size_and_time(path: Path) -> list[object]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
