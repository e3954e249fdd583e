"""Load a model in a worker: only the cleaned file and what is in it come back."""

from collections.abc import Mapping
from pathlib import Path

from tuner.engines.base import ModelFile
from tuner.networks.base import TensorSpec
from tuner.networks.load import load_network
from tuner.networks.loaded import LoadedModel


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
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_bytes(network.model)
        partial.rename(path)
    return LoadedModel(
        name=network.name,
        sha256=network.sha256,
        file=ModelFile(str(path), network.format, _plain(network.inputs)),
        outputs=tuple(network.outputs),
        notes=network.notes,
    )


def _plain(specs: Mapping[str, TensorSpec]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (spec.shape, spec.dtype) for name, spec in specs.items()}
