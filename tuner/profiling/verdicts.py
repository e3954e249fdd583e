"""Verdicts on the kernels of a profiled library: what limits each, and what would help."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tuner.devices.target_matching import kind_named
from tuner.library.manifest import InputValue, Manifest, Program

Kind = Literal[
    "copy", "untuned", "roof", "early", "small", "improving", "cold", "memory", "compute"
]  # fmt: skip

#: What each kind of verdict means.
MEANINGS: Mapping[Kind, str] = {
    "copy": "moves data only",
    "untuned": "has no record and runs a schedule by rule",
    "roof": "reaches its roof: only another algorithm would be faster",
    "early": "hardly tuned: fewer than 32 trials so far",
    "improving": "improved in the latest third of its trials",
    "small": "too short to gain from several threads",
    "cold": "slower here than its record: disturbed, or its data is cold",
    "memory": "limited by memory, below its roof",
    "compute": "limited by arithmetic, below its roof",
}

#: Verdicts on kernels that more trials could improve.
UNFINISHED: tuple[Kind, ...] = ("untuned", "early", "improving")

# Share of its roof from which a kernel counts as at it: roofs are measured within a tenth.
_AT_ROOF = 0.8
# With fewer trials, a task that did not improve lately says little.
_MIN_TRIALS = 32
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
class NetworkFacts:
    """Facts about a network from the database.

    Attributes:
        kernels: Facts about its subgraphs, by workload.
        roof_problem: Reason why roofs are unknown; empty if they are not.
    """

    kernels: Mapping[str, KernelFacts]
    roof_problem: str = ""


@dataclass(frozen=True)
class Verdict:
    """The limit of a kernel, and the command that would help; empty if none would."""

    kind: Kind
    command: str = ""

    @property
    def reason(self) -> str:
        """The verdict for people."""
        return MEANINGS[self.kind]


#: The verdict on a kernel before anything is known about it.
UNJUDGED = Verdict("copy")


def tune_command(described: Manifest, program: Program, model: str = "") -> str:
    """Return the command that tunes the network of a program further; empty without its model.

    Args:
        described: Manifest of the library.
        program: Program of the library.
        model: Path of its model; by default the name in the manifest, in the current folder.
    """
    source = described.source
    reference = model or source.name
    if not (reference.startswith("zoo:") or Path(reference).is_file()):
        return ""
    words = ["tuner", "tune", reference]
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


def judge(
    facts: KernelFacts, secs: float, record_secs: float | None, tune: str, *, is_subgraph: bool
) -> Verdict:
    """Judge a kernel by the time of one call in the network.

    Args:
        facts: Facts about the subgraph.
        record_secs: Time of one call by its record, seconds; None without a record.
        tune: Command that tunes the network further.
        is_subgraph: False for a kernel that is not a subgraph.
    """
    if not is_subgraph or (facts.n_trials is not None and facts.flop == 0.0 and not record_secs):
        return Verdict("copy")
    if facts.roof_secs >= _AT_ROOF * secs > 0.0:
        return Verdict("roof")
    if record_secs is None:
        return Verdict("untuned", tune)
    return _judge_tuned(facts, secs, record_secs, tune)


def _judge_tuned(facts: KernelFacts, secs: float, record_secs: float, tune: str) -> Verdict:
    # Imported records come without their trials.
    if 0 < (facts.n_trials or 0) < _MIN_TRIALS:
        return Verdict("early", tune)
    if facts.is_improving:
        return Verdict("improving", tune)
    if secs < _SMALL_SECS:
        return Verdict("small")
    if secs > _COLD * record_secs:
        return Verdict("cold")
    return Verdict("memory" if facts.is_memory_bound else "compute", tune)
