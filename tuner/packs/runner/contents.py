"""The pack that a runner is in: its index, its binaries, its expected outputs."""

import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tuner.engines.verification import input_sets
from tuner.engines.verification.comparison import Expected, difference, digest, relative_error
from tuner.engines.verification.input_sets import InputSet
from tuner.errors import WorkError

Array = np.ndarray[Any, Any]

INDEX = "pack.json"


@dataclass(frozen=True)
class SampledOutput:
    """Expected values of an output at some positions, and a digest of all if they are exact.

    Attributes:
        positions: Positions in the flat output.
        expected: Values and bounds at these positions.
        digest: Digest of all values; None where rounding errors are allowed.
    """

    positions: Array
    expected: Expected
    digest: int | None


@dataclass(frozen=True)
class SampledReference:
    """The description of inputs, and what a kernel must compute from them."""

    input_set: InputSet
    checksum: int
    outputs: Sequence[SampledOutput]

    def draw(self) -> list[Array]:
        """Draw the inputs.

        Raises:
            WorkError: If this machine draws other numbers, or does not know a type.
        """
        if any(spec.dtype == "bfloat16" for spec in self.input_set.specs):
            try:
                np.dtype("bfloat16")
            except TypeError:
                raise WorkError("bfloat16 needs the package ml_dtypes") from None
        arrays = input_sets.draw(self.input_set)
        if input_sets.checksum(arrays) != self.checksum:
            raise WorkError("this machine's NumPy draws other inputs than the pack was made with")
        return arrays

    def check(self, outputs: Sequence[Array]) -> tuple[str, float]:
        """Return the first difference of outputs, empty if they agree, and the largest error."""
        worst = 0.0
        for number, (output, sampled) in enumerate(zip(outputs, self.outputs, strict=True)):
            values = output.reshape(-1)[sampled.positions]
            text = difference(values, sampled.expected)
            worst = max(worst, relative_error(values, sampled.expected))
            dtype = str(sampled.expected.values.dtype)
            if not text and sampled.digest is not None and digest(output, dtype) != sampled.digest:
                text = "differs outside of the samples"
            if text:
                return f"output {number}, among samples: {text}", worst
        return "", worst


@dataclass(frozen=True)
class Pack:
    """A pack on disk."""

    path: Path

    @cached_property
    def index(self) -> dict[str, Any]:
        """Contents of the pack, JSON."""
        index: dict[str, Any] = json.loads(self._read(INDEX))
        return index

    @property
    def workloads(self) -> Sequence[Mapping[str, Any]]:
        """Workloads, the most important first."""
        workloads: Sequence[Mapping[str, Any]] = self.index["workloads"]
        return workloads

    @property
    def networks(self) -> Sequence[Mapping[str, Any]]:
        """Networks whose launches are in the pack."""
        networks: Sequence[Mapping[str, Any]] = self.index["networks"]
        return networks

    def network_content(self, network: Mapping[str, Any]) -> bytes:
        """Return the weights of a network that are not drawn, and its other binaries."""
        return self._read(f"networks/{network['number']}.bin")

    def sources(self, workload: str) -> Mapping[str, Sequence[Any]]:
        """Return what can be compiled here of a workload, by its hash: program and its limit."""
        return _sources(self.path, workload)

    def code(self, workload: str) -> bytes:
        """Return the binaries of a workload, by its hash."""
        return _code(self.path, workload)

    def references(self, workload: Mapping[str, Any]) -> list[SampledReference]:
        """Return the references of a workload."""
        with np.load(io.BytesIO(self._read(f"workloads/{workload['workload']}.npz"))) as stored:
            return list(_references(workload["references"], stored))

    def _read(self, name: str) -> bytes:
        with zipfile.ZipFile(self.path) as archive:
            return archive.read(name)


@lru_cache(maxsize=8)
def _code(path: Path, workload: str) -> bytes:
    return Pack(path)._read(f"workloads/{workload}.bin")


@cache
def _sources(path: Path, workload: str) -> Mapping[str, Sequence[Any]]:
    sources: dict[str, Sequence[Any]] = json.loads(Pack(path)._read(f"sources/{workload}.json"))
    return sources


def _references(described: Sequence[Mapping[str, Any]], stored: Any) -> Iterator[SampledReference]:
    for number, reference in enumerate(described):
        outputs = []
        for output, expected_digest in enumerate(reference["digests"]):
            end = f"{number}_{output}"
            expected = Expected(stored[f"values_{end}"], stored.get(f"bounds_{end}"))
            outputs.append(SampledOutput(stored[f"positions_{end}"], expected, expected_digest))
        input_set = InputSet.load(reference["input_set"])
        yield SampledReference(input_set, reference["checksum"], outputs)
