"""Packs that were made with a data directory: what their results are checked against.

Each is a file of the data directory, because its key is a secret that the database's readers need
not know.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tuner.errors import RequestError
from tuner.files.atomic_files import atomic_file

_FOLDER = "packs"
_ID = re.compile(r"[0-9a-f]{12}", re.ASCII)


@dataclass(frozen=True)
class RegisteredCandidate:
    """A candidate of a pack, as its record names it."""

    trace: str
    module_hash: str


@dataclass(frozen=True)
class RegisteredPack:
    """A pack, as the data directory that it was made with knows it.

    Attributes:
        pack: Id of the pack.
        key: Secret that its results are written with.
        made: Time at which it was made, ISO 8601.
        engine: Engine of its workloads.
        spec: Canonical JSON of its target.
        capabilities: Compute capabilities of the GPUs that its binaries run on.
        versions: Versions in the fingerprint of devices that its records are of.
        networks: Names of the networks.
        workloads: Candidates by variant, by hash of the workload.
        sources: Candidates that the machine with the GPU may compile.
        imported: Number of results that were imported, by name of the device.
    """

    pack: str
    key: str
    made: str
    file: str
    engine: str
    spec: str
    capabilities: Sequence[str]
    versions: dict[str, Any]
    networks: Sequence[str]
    workloads: dict[str, dict[str, RegisteredCandidate]]
    sources: dict[str, dict[str, RegisteredCandidate]] = field(default_factory=dict)
    imported: dict[str, int] = field(default_factory=dict)

    @property
    def n_candidates(self) -> int:
        """Number of compiled candidates."""
        return sum(map(len, self.workloads.values()))

    def candidate(self, workload: str, name: str) -> RegisteredCandidate | None:
        """Return a candidate; None for one that the pack does not have."""
        for candidates in (self.workloads, self.sources):
            if name in candidates.get(workload, {}):
                return candidates[workload][name]
        return None


def store(data_dir: Path, pack: RegisteredPack) -> None:
    """Store a pack, or its new state, for this user alone."""
    folder = data_dir / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    store_in(folder, pack, 0o600)


def store_in(folder: Path, pack: RegisteredPack, mode: int) -> None:
    """Store a pack in a folder, with permissions."""
    with atomic_file(folder / f"{pack.pack}.json", mode) as stream:
        stream.write(json.dumps(asdict(pack)).encode())


@contextmanager
def forgotten_on_error(data_dir: Path, pack: str) -> Iterator[None]:
    """Remove a pack that was stored in the block, if the block fails: its file is not there."""
    try:
        yield
    except BaseException:
        (data_dir / _FOLDER / f"{pack}.json").unlink(missing_ok=True)
        raise


def load(data_dir: Path, pack: str) -> RegisteredPack:
    """Return a pack by its id.

    Raises:
        RequestError: If this data directory has no such pack.
    """
    if not _ID.fullmatch(pack) or not (data_dir / _FOLDER / f"{pack}.json").is_file():
        raise RequestError(
            f"pack {pack[:40]!r} was not made with the data directory {data_dir}; "
            "tuner pack status lists those that were"
        )
    return load_from(data_dir / _FOLDER, pack)


def load_from(folder: Path, pack: str) -> RegisteredPack:
    """Return a pack of a folder by its id."""
    fields = json.loads((folder / f"{pack}.json").read_bytes())
    for kind in ("workloads", "sources"):
        fields[kind] = {
            workload: {name: RegisteredCandidate(**each) for name, each in candidates.items()}
            for workload, candidates in fields.get(kind, {}).items()
        }
    return RegisteredPack(**fields)


def load_all(data_dir: Path) -> Iterator[RegisteredPack]:
    """Yield the packs of a data directory, the oldest first."""
    ids = [path.stem for path in (data_dir / _FOLDER).glob("*.json")]
    packs = [load(data_dir, each) for each in ids if _ID.fullmatch(each)]
    yield from sorted(packs, key=lambda pack: (pack.made, pack.pack))


def forget(data_dir: Path, pack: str) -> None:
    """Remove a pack, whose results can no longer be imported.

    Raises:
        RequestError: If this data directory has no such pack.
    """
    load(data_dir, pack)
    (data_dir / _FOLDER / f"{pack}.json").unlink()
