"""What the coordinator knows of a loaded model; it never holds the weights."""

from dataclasses import dataclass

from tuner.engines.base import ModelFile


@dataclass(frozen=True)
class LoadedModel:
    """A cleaned model on disk.

    Attributes:
        name: For people.
        sha256: Identifies the network.
        file: Where the cleaned model is, and its inputs.
        outputs: Names, in order.
        notes: What was done to it.
    """

    name: str
    sha256: str
    file: ModelFile
    outputs: tuple[str, ...]
    notes: tuple[str, ...]
