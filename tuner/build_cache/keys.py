"""Keys of the cache: the hash of everything the bytes of an entry depend on."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tuner.library.processors import cpu_fields

_KIND = re.compile(r"[a-z]{1,32}")
_DIGEST = re.compile(r"[0-9a-f]{64}")

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


@dataclass(frozen=True)
class Key:
    """The identity of an entry.

    Attributes:
        kind: Sort of entry, in lower-case letters.
        parts: JSON of everything the bytes depend on, and nothing else.
        title: Text for people; not part of the digest.
    """

    kind: str
    parts: Mapping[str, Any]
    title: str = ""

    def __post_init__(self) -> None:
        if not _KIND.fullmatch(self.kind):
            raise ValueError(f"a kind is 1 to 32 lower-case letters, got {self.kind!r}")

    @cached_property
    def text(self) -> str:
        """The canonical JSON of kind and parts: equal for equal keys, and for no others."""
        return canonical({"kind": self.kind, "parts": self.parts})

    @cached_property
    def digest(self) -> str:
        """The sha256 of :attr:`text`, hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class PartDifference:
    """One part in which two keys differ; None where a key has no such part."""

    part: str
    ours: Any
    theirs: Any


@dataclass(frozen=True)
class KeyDifference:
    """The difference between a key and the key of an entry."""

    digest: str
    title: str
    parts: tuple[PartDifference, ...]


def canonical(value: Any) -> str:
    """Write JSON in the one form that is hashed.

    Raises:
        ValueError: If the value holds infinities or NaN.
        TypeError: If it is not JSON.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def is_digest(text: str) -> bool:
    """Return whether a text has the form of a digest."""
    return bool(_DIGEST.fullmatch(text))


def is_kind(text: str) -> bool:
    """Return whether a text has the form of a kind."""
    return bool(_KIND.fullmatch(text))


def differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[PartDifference, ...]:
    """List the parts that differ, sorted by name; parts of nested mappings are ``outer.inner``."""
    flat_ours, flat_theirs = dict(_flat(ours)), dict(_flat(theirs))
    names = sorted(set(flat_ours) | set(flat_theirs))
    return tuple(
        PartDifference(name, flat_ours.get(name), flat_theirs.get(name))
        for name in names
        if canonical(flat_ours.get(name)) != canonical(flat_theirs.get(name))
    )


def _flat(parts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in parts.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
