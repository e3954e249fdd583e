"""Verdicts on the kernels of a profiled library: what limits each, and what would help."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tuner.devices.target_matching import kind_named
from tuner.library.manifest import InputValue, Manifest, Program, SubgraphEntry

Kind = Literal["copy", "untuned", "roof", "small", "improving", "cold", "memory", "compute"]

#: What each kind of verdict means.
MEANINGS: Mapping[Kind, str] = {
    "copy": "moves data only",
    "untuned": "has no record and runs a schedule by rule",
    "roof": "reaches its roof: only another algorithm would be faster",
    "improving": "improved in the latest third of its trials",
    "small": "too short to gain from several threads",
    "cold": "slower here than its record: disturbed, or its data is cold",
    "memory": "limited by memory, below its roof",
    "compute": "limited by arithmetic, below its roof",
}

# Share of its roof from which a kernel counts as at it: roofs are measured within a tenth.
_AT_ROOF = 0.8
# A parallel region takes a few microseconds to start on two cores.
_SMALL_SECS = 10e-6
# Factor between the latency in the network and that of the record from which the data is cold.
_COLD = 1.25


@dataclass(frozen=True)
class KernelFacts:
    """Facts about a subgraph from the database; the defaults stand for one that it does not know.

    Attributes:
        flop: Operations of one call.
        n_bytes: Bytes that a perfect kernel moves.
        roof_secs: Latency that no kernel can beat on the device, seconds; 0 if unknown.
        is_memory_bound: True if the bytes set the roof, not the operations.
        n_trials: Trials of the task so far; None if the database does not know it.
        is_improving: True if the latest third of the trials brought more than 2 %.
    """

    flop: float = 0.0
    n_bytes: int = 0
    roof_secs: float = 0.0
    is_memory_bound: bool = False
    n_trials: int | None = None
    is_improving: bool = False


@dataclass(frozen=True)
class Verdict:
    """The limit of a kernel, and the command that would help; empty if none would."""

    kind: Kind
    command: str = ""

    @property
    def reason(self) -> str:
        """The verdict for people."""
        return MEANINGS[self.kind]


def tune_command(described: Manifest, program: Program, model: str = "") -> str:
    """Return the command that tunes the network of a program further.

    Args:
        described: Manifest of the library.
        program: Program of the library.
        model: Path of its model; the name in the manifest has no folder.
    """
    source = described.source
    words = ["tuner", "tune", model or source.name]
    if not source.name.startswith("zoo:"):
        shapes = {name: shape for name, (shape, _) in program.inputs.items() if shape}
        for name, value in (shapes | dict(program.values)).items():
            words += ["--input", f"{name}={_written(value)}"]
    if source.random_weights is not None:
        words += ["--random-weights", str(source.random_weights)]
    if kind_named(described.target) == "cuda":
        words += ["--target", "cuda"]
    elif "onednn" in described.target:
        words += ["--target", "llvm+onednn"]
    return shlex.join(words)


def _written(value: InputValue) -> str:
    """Return the shape or the value of an input as the option reads it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def judge(entry: SubgraphEntry | None, facts: KernelFacts, secs: float, tune: str) -> Verdict:
    """Judge a kernel by the time of one call in the network, seconds.

    Args:
        entry: Its subgraph; None for a kernel that is not one.
        facts: Facts about the subgraph.
        secs: Time of one call.
        tune: Command that tunes the network further.
    """
    if entry is None or (facts.n_trials is not None and facts.flop == 0.0 and entry.record is None):
        return Verdict("copy")
    if facts.roof_secs >= _AT_ROOF * secs > 0.0:
        return Verdict("roof")
    if entry.latency is None:
        return Verdict("untuned", tune)
    return _judge_tuned(facts, secs, entry.latency, tune)


def _judge_tuned(facts: KernelFacts, secs: float, latency: float, tune: str) -> Verdict:
    if facts.is_improving:
        return Verdict("improving", tune)
    if secs < _SMALL_SECS:
        return Verdict("small")
    if secs > _COLD * latency:
        return Verdict("cold")
    return Verdict("memory" if facts.is_memory_bound else "compute", tune)
