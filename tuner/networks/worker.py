"""Load a model in a worker: only the cleaned file and what is in it come back."""

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
    """Load a model and keep its cleaned bytes in ``folder`` under its hash.

    Raises:
        ModelError: See :func:`tuner.networks.load.load_network`.
    """
    network = load_network(reference, inputs, random_weights=random_weights, alone=alone)
    path = Path(folder) / f"{network.sha256}.{network.format}"
    # One that is there may have been cut off by a loss of power, or altered.
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
    """Write a file that appears whole, whoever else writes it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(descriptor)
        Path(beside).chmod(0o644)
        Path(beside).rename(path)
    finally:
        Path(beside).unlink(missing_ok=True)


def _plain(specs: Mapping[str, TensorSpec]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (spec.shape, spec.dtype) for name, spec in specs.items()}
