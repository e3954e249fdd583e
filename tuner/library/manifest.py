"""The manifest of a library: what it is, what it was made of, and that it is whole."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tuner.errors import RequestError

MANIFEST = "manifest.json"
LIBRARY = "lib.so"
VERSION = 1

Inputs = Mapping[str, tuple[tuple[int, ...], str]]


@dataclass(frozen=True)
class SubgraphEntry:
    """One subgraph of a library.

    Attributes:
        name: What it computes.
        workload: Its hash.
        n_calls: Kernel calls it stands for.
        record: Id of the measure record it was built from; None for a fallback.
        latency: Seconds of one call by that record; None for a fallback.
    """

    name: str
    workload: str
    n_calls: int
    record: int | None
    latency: float | None


@dataclass(frozen=True)
class Manifest:
    """What a library holds; ``files`` gives the sha256 of every file by name."""

    network: str
    model_name: str
    target: str
    device: Mapping[str, Any]
    inputs: Inputs
    outputs: tuple[str, ...]
    subgraphs: tuple[SubgraphEntry, ...]
    files: Mapping[str, str]
    version: int = VERSION

    @property
    def estimated_secs(self) -> float | None:
        """Sum of the records' latencies over all kernel calls; None with a fallback."""
        if any(subgraph.latency is None for subgraph in self.subgraphs):
            return None
        return sum((s.latency or 0.0) * s.n_calls for s in self.subgraphs)


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a library, last of its files."""
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n")


def read(folder: Path) -> Manifest:
    """Read and check a library's manifest.

    Raises:
        RequestError: If there is no library, it is damaged, or of a newer version.
    """
    try:
        raw = json.loads((folder / MANIFEST).read_text())
        if raw["version"] > VERSION:
            raise RequestError(
                f"{folder} was built by a newer tuner (manifest version {raw['version']}); upgrade"
            )
        raw["inputs"] = {k: (tuple(shape), dtype) for k, (shape, dtype) in raw["inputs"].items()}
        raw["outputs"] = tuple(raw["outputs"])
        raw["subgraphs"] = tuple(SubgraphEntry(**entry) for entry in raw["subgraphs"])
        raw["files"] = dict(raw["files"].items())
        return Manifest(**raw)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RequestError(f"{folder} holds no library: {MANIFEST} is missing") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RequestError(f"{folder / MANIFEST} is damaged: {error}") from error


def verify(folder: Path, manifest: Manifest) -> None:
    """Compare every file with its checksum.

    Raises:
        RequestError: If a file is missing or altered.
    """
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise RequestError(f"{folder} is incomplete: {name} is missing; build it again")
        if sha256_of(path) != expected:
            raise RequestError(f"{path} was altered after it was built; build it again")


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
