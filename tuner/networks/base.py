"""Loaded networks and the hash that identifies them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tuner.engines.base import ModelFile
from tuner.library.limits import InputLimit
from tuner.library.manifest import Inputs, InputValue, Source, Tail

#: Largest ONNX model: the limit of protobuf.
MAX_ONNX_BYTES = 2**31 - 1
#: Float dtypes from the finest to the coarsest; ``quantised`` is coarser than all.
PRECISIONS = ("float64", "float32", "float16", "bfloat16", "quantised")


@dataclass(frozen=True)
class TensorSpec:
    """One input or output: dimensions, -1 where data decide, and the numpy name of the dtype."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Network:
    """A model with fixed input shapes, ready for an engine.

    Attributes:
        name: Display name: the stem of the file, or the text after ``zoo:``.
        format: Format of ``model``: a serialised ONNX model or a torch.export archive.
        model: Cleaned, self-contained bytes, without external data.
        sha256: Hash that identifies the network; see ``network_hash``.
        inputs: Inputs by name, in the order of the model.
        outputs: Outputs by name, in the order of the model.
        notes: Changes made to the model and advice for the user, one sentence each.
        values: Values of the inputs that became constants, by name; a shape without elements.
        tail: The operators of ``model`` that are not compiled; None if all are.
        limits: Limits of the values of inputs that it takes as indices and divisors.
    """

    name: str
    format: Literal["onnx", "pt2"]
    model: bytes
    sha256: str
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    notes: tuple[str, ...]
    values: Mapping[str, InputValue] = field(default_factory=dict)
    tail: Tail | None = None
    limits: tuple[InputLimit, ...] = ()


@dataclass(frozen=True)
class LoadedModel:
    """A cleaned model on disk.

    Attributes:
        name: Display name.
        sha256: Hash that identifies the network.
        file: Path of the cleaned model, and its inputs.
        outputs: Shape and dtype of the outputs by name, in order.
        notes: Changes made to the model.
        source: The model before it was cleaned.
        values: Values of the inputs that became constants, by name; a shape without elements.
        tail: The operators of ``model`` that are not compiled; None if all are.
        limits: Limits of the values of inputs that it takes as indices and divisors.
    """

    name: str
    sha256: str
    file: ModelFile
    outputs: Inputs
    notes: tuple[str, ...]
    source: Source
    values: Mapping[str, InputValue] = field(default_factory=dict)
    tail: Tail | None = None
    limits: tuple[InputLimit, ...] = ()


@dataclass(frozen=True)
class ValueRange:
    """Whole numbers that an input may take, both ends included, and the reason."""

    low: int
    high: int
    reason: str


@dataclass(frozen=True)
class ModelFacts:
    """Properties of a model that a comparison depends on.

    Attributes:
        ranges: Values of inputs of whole numbers and booleans, as far as the graph tells them.
        precision: Coarsest of :data:`PRECISIONS` that the model computes in.
        sigmoids: Positions of the outputs that have elements of a Sigmoid.
    """

    ranges: Mapping[str, ValueRange]
    precision: str
    sigmoids: frozenset[int] = frozenset()


def network_hash(model: bytes, inputs: Mapping[str, TensorSpec]) -> str:
    """Hash the cleaned bytes and the input shapes, independent of names and paths."""
    return hash_with(hashlib.sha256(model), {n: (s.shape, s.dtype) for n, s in inputs.items()})


def file_hash(path: Path, inputs: Mapping[str, tuple[tuple[int, ...], str]]) -> str:
    """Return the :func:`network_hash` of a file and of its inputs' shapes and dtypes.

    Raises:
        OSError: If the file cannot be read.
    """
    with path.open("rb") as stream:
        return hash_with(hashlib.file_digest(stream, "sha256"), inputs)


def hash_with(digest: Any, inputs: Mapping[str, tuple[tuple[int, ...], str]]) -> str:
    """Return the :func:`network_hash` of the model that a digest has read."""
    specs = [[name, list(shape), dtype] for name, (shape, dtype) in inputs.items()]
    digest.update(json.dumps(specs).encode())
    return str(digest.hexdigest())
