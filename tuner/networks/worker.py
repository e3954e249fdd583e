"""Worker function that loads a model, writes the cleaned file, and returns its description."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tuner.engines.base import ModelFile
from tuner.networks.base import LoadedModel, TensorSpec
from tuner.networks.load import load_network


def load_model(
    reference: str,
    inputs: Mapping[str, tuple[int, ...]],
    random_weights: int | None,
    folder: str,
    alone: bool = False,
) -> LoadedModel:
    """Load a model and write its cleaned bytes to ``folder`` under its hash.

    Raises:
        ModelError: See :func:`tuner.networks.load.load_network`.
    """
    network = load_network(reference, inputs, random_weights=random_weights, alone=alone)
    path = Path(folder) / f"{network.sha256}.{network.format}"
    # An existing file may have been truncated by a power failure, or altered.
    if not path.is_file() or path.read_bytes() != network.model:
        _write(path, network.model)
    return LoadedModel(
        name=network.name,
        sha256=network.sha256,
        file=ModelFile(str(path), network.format, _plain(network.inputs)),
        outputs=tuple(network.outputs),
        notes=network.notes,
    )


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically, even if another process writes it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(descriptor)
        Path(temporary).chmod(0o644)
        Path(temporary).rename(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _plain(specs: Mapping[str, TensorSpec]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (spec.shape, spec.dtype) for name, spec in specs.items()}
