"""Cache of loaded models, by the content of their files."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from tuner.build_cache.cache import Cache
from tuner.build_cache.keys import Key, code_of, versions_of
from tuner.engines.base import ModelFile
from tuner.jobs.models.model_loading import DEFAULT_LIMITS, LoadLimits, ModelQuery, load_in
from tuner.library.limits import Limits
from tuner.library.manifest import InputValue, Source, Tail
from tuner.networks.base import LoadedModel
from tuner.workers.pool import Pool

KIND = "model"
_PACKAGES = ("onnx", "onnxslim", "numpy", "torch")
# Key under which ONNX names an external file; without it, all weights are in the model's file.
_EXTERNAL_KEY = b"location"
_CHUNK_BYTES = 1 << 20


def load(
    cache: Cache,
    worker: Pool,
    folder: Path,
    query: ModelQuery,
    limits: LoadLimits = DEFAULT_LIMITS,
) -> LoadedModel:
    """Return a model from the cache, or load it with :func:`load_in` of ``model_loading``."""
    key = _key(query, folder, limits)
    cached = None if key is None else _find(cache, key)
    if cached is not None:
        return cached
    loaded = load_in(worker, folder, query, limits)
    # The file may have been replaced while it was loaded.
    if key is not None and _key(query, folder, limits) == key:
        _add(cache, key, loaded)
    return loaded


def _key(query: ModelQuery, folder: Path, limits: LoadLimits) -> Key | None:
    """Return the cache key of a model, of everything that its loading depends on.

    None if the file is missing or may have weights in other files, which only loading tells.
    """
    reference = query.reference
    zoo = reference.startswith("zoo:")
    content = reference if zoo else content_of(Path(reference))
    if content is None:
        return None
    parts = {
        "content": content,
        "name": Path(reference).name,
        "inputs": {name: list(shape) for name, shape in query.inputs.items()},
        "sizes": dict(query.sizes),
        "random_weights": query.random_weights,
        "alone": limits.alone,
        "folder": str(folder),
        "code": code_of("tuner.networks"),
        "packages": versions_of(*_PACKAGES),
    }
    return Key(KIND, parts, reference)


def _find(cache: Cache, key: Key) -> LoadedModel | None:
    """Return a loaded model, if its cleaned file still exists."""
    entry = cache.find(key)
    if entry is None:
        return None
    with entry:
        info: dict[str, Any] = dict(entry.info)
    path = Path(info["path"])
    if not path.is_file() or path.stat().st_size != info["n_bytes"]:
        return None
    inputs = {name: (tuple(shape), dtype) for name, shape, dtype in info["inputs"]}
    return LoadedModel(
        name=info["name"],
        sha256=info["sha256"],
        file=ModelFile(str(path), info["format"], inputs),
        outputs={name: (tuple(shape), dtype) for name, shape, dtype in info["outputs"]},
        notes=tuple(info["notes"]),
        source=Source(**info["source"]),
        values=msgspec.convert(info["values"], dict[str, InputValue]),
        tail=msgspec.convert(info["tail"], Tail | None),
        limits=msgspec.convert(info["limits"], Limits),
    )


def _add(cache: Cache, key: Key, loaded: LoadedModel) -> None:
    info = {
        "name": loaded.name,
        "sha256": loaded.sha256,
        "path": loaded.file.path,
        "n_bytes": Path(loaded.file.path).stat().st_size,
        "format": loaded.file.format,
        # A list, because JSON mappings lose their order, and programs take inputs in this one.
        "inputs": [[name, *spec] for name, spec in loaded.file.inputs.items()],
        "outputs": [[name, *spec] for name, spec in loaded.outputs.items()],
        "notes": list(loaded.notes),
        "source": vars(loaded.source),
        "values": dict(loaded.values),
        "tail": vars(loaded.tail) if loaded.tail else None,
        "limits": [*map(vars, loaded.limits)],
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
                if is_onnx and _EXTERNAL_KEY in end + chunk:
                    return None
                digest.update(chunk)
                end = chunk[-len(_EXTERNAL_KEY) :]
    except OSError:
        return None
    return digest.hexdigest()
