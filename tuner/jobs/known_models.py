"""Models that were loaded before: what loading them came to, by the bytes of their files."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.build_cache.cache import Cache
from tuner.build_cache.key_inputs import code_of, versions_of
from tuner.build_cache.keys import Key
from tuner.engines.base import ModelFile
from tuner.jobs.loaded_models import OUR_OWN, LoadLimits, load_in
from tuner.networks.base import LoadedModel
from tuner.workers.pool import Pool

KIND = "model"
_PACKAGES = ("onnx", "onnxslim", "numpy", "torch")
# The key that names another file in ONNX; a model without it has all its weights inside.
_ELSEWHERE = b"location"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class ModelQuery:
    """A model to load; see :func:`tuner.networks.load.load_network`."""

    reference: str
    inputs: Mapping[str, tuple[int, ...]]
    random_weights: int | None


def load(
    cache: Cache,
    worker: Pool,
    folder: Path,
    wanted: ModelQuery,
    limits: LoadLimits = OUR_OWN,
) -> LoadedModel:
    """Load a model as :func:`tuner.jobs.loaded_models.load_in`, if it was not loaded before."""
    key = _key(wanted, folder, limits)
    known = None if key is None else _recall(cache, key)
    if known is not None:
        return known
    loaded = load_in(worker, folder, wanted.reference, wanted.inputs, wanted.random_weights, limits)
    # The file may have become another while it was loaded.
    if key is not None and _key(wanted, folder, limits) == key:
        _keep(cache, key, loaded)
    return loaded


def _key(wanted: ModelQuery, folder: Path, limits: LoadLimits) -> Key | None:
    """Return what the loading of a model depends on.

    None if that cannot be said without loading it: it is not there, or may have weights in
    other files.
    """
    reference = wanted.reference
    zoo = reference.startswith("zoo:")
    content = reference if zoo else content_of(Path(reference))
    if content is None:
        return None
    parts = {
        "content": content,
        "name": Path(reference).name,
        "inputs": {name: list(shape) for name, shape in wanted.inputs.items()},
        "random_weights": wanted.random_weights,
        "alone": limits.alone,
        "folder": str(folder),
        "code": code_of("tuner.networks"),
        "packages": versions_of(*_PACKAGES),
    }
    return Key(KIND, parts, reference)


def _recall(cache: Cache, key: Key) -> LoadedModel | None:
    """Return what a model was loaded to, if its cleaned file is still there."""
    entry = cache.find(key)
    if entry is None:
        return None
    with entry:
        known: dict[str, Any] = dict(entry.info)
    path = Path(known["path"])
    if not path.is_file() or path.stat().st_size != known["n_bytes"]:
        return None
    inputs = {name: (tuple(shape), dtype) for name, shape, dtype in known["inputs"]}
    return LoadedModel(
        name=known["name"],
        sha256=known["sha256"],
        file=ModelFile(str(path), known["format"], inputs),
        outputs=tuple(known["outputs"]),
        notes=tuple(known["notes"]),
    )


def _keep(cache: Cache, key: Key, loaded: LoadedModel) -> None:
    """Remember what a model was loaded to."""
    info = {
        "name": loaded.name,
        "sha256": loaded.sha256,
        "path": loaded.file.path,
        "n_bytes": Path(loaded.file.path).stat().st_size,
        "format": loaded.file.format,
        # A list: mappings come back in another order, and programs take inputs in this one.
        "inputs": [[name, *spec] for name, spec in loaded.file.inputs.items()],
        "outputs": list(loaded.outputs),
        "notes": list(loaded.notes),
    }
    cache.remember(key, info)


def content_of(path: Path) -> str | None:
    """Hash the file of a model; None if it cannot be read, or may have weights in other files."""
    is_onnx = path.suffix.lower() == ".onnx"
    digest, end = hashlib.sha256(), b""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                if is_onnx and _ELSEWHERE in end + chunk:
                    return None
                digest.update(chunk)
                end = chunk[-len(_ELSEWHERE) :]
    except OSError:
        return None
    return digest.hexdigest()
