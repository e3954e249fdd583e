"""What a loaded network is, and the hash that identifies it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tuner.engines.base import ModelFile


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


def network_hash(model: bytes, inputs: Mapping[str, TensorSpec]) -> str:
    """Hash the cleaned bytes and the input shapes, so that a name or a path changes nothing."""
    return _finished(hashlib.sha256(model), {n: (s.shape, s.dtype) for n, s in inputs.items()})


def file_hash(path: Path, inputs: Mapping[str, tuple[tuple[int, ...], str]]) -> str:
    """Return the :func:`network_hash` of a file, and of shape and dtype by input name.

    Raises:
        OSError: If the file cannot be read.
    """
    with path.open("rb") as stream:
        return _finished(hashlib.file_digest(stream, "sha256"), inputs)


def _finished(digest: Any, inputs: Mapping[str, tuple[tuple[int, ...], str]]) -> str:
    specs = [[name, list(shape), dtype] for name, (shape, dtype) in inputs.items()]
    digest.update(json.dumps(specs).encode())
    return str(digest.hexdigest())
