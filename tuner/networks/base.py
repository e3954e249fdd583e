"""What a loaded network is, and the hash that identifies it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TensorSpec:
    """One input or output: every dimension is a number, the dtype a numpy name."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Network:
    """A model with fixed input shapes, ready for an engine.

    Attributes:
        name: The file's stem, or what followed ``zoo:``; for people only.
        format: What ``model`` holds: a serialised ONNX model or a torch.export archive.
        model: The cleaned bytes, self-contained (no external data).
        sha256: Identifies the network; see ``network_hash``.
        inputs: By name, in the order the model takes them.
        outputs: By name, in the order the model gives them.
        notes: What was done to the model, and what a user should know; one sentence each.
    """

    name: str
    format: Literal["onnx", "pt2"]
    model: bytes
    sha256: str
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    notes: tuple[str, ...]


def network_hash(model: bytes, inputs: Mapping[str, TensorSpec]) -> str:
    """Hash the cleaned bytes and the input shapes, so that a name or a path changes nothing."""
    specs = [[name, list(spec.shape), spec.dtype] for name, spec in inputs.items()]
    digest = hashlib.sha256(model)
    digest.update(json.dumps(specs).encode())
    return digest.hexdigest()
