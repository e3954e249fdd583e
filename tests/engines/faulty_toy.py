"""The toy engine, with the faults that a control file asks for; see :mod:`tests.engines.faults`.

A fault that is a key of ``GARBAGE`` is an answer of the wrong kind.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from tests.engines import toy
from tests.engines.faults import due, strike
from tests.engines.toy import extract, profile
from tuner.engines.base import (
    BuildRequest,
    BuildResult,
    Candidate,
    ReferenceRequest,
    RunRequest,
    RunResult,
    SearchRequest,
    TargetInfo,
)

__all__ = ["extract", "profile"]

NAME = "tests.engines.faulty_toy"
Answer = TypeVar("Answer")


GARBAGE: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "text": lambda: "garbage\x00\ud800",
    "number": lambda: float("nan"),
    "list": lambda: [None, 3],
    "huge": lambda: "x" * 30_000_000,
    "unsendable": lambda: lambda: None,
    "unreceivable": lambda: {"what": "is not expected"},
    "no_candidates": list,
    "odd_candidates": lambda: [Candidate(None, 5, "features", "score")],  # type: ignore[arg-type]
    "unstorable_candidates": lambda: [Candidate("\x00", "\ud800", b"", 0.0)],
    "odd_artifact": lambda: BuildResult(None),  # type: ignore[arg-type]
    "no_artifact": lambda: BuildResult(""),
    "lost_artifact": lambda: BuildResult("/nonexistent/artifact"),
    "odd_error": lambda: BuildResult("", error_text=7),  # type: ignore[arg-type]
    "huge_error": lambda: BuildResult("", error_text="y" * 30_000_000),
    "odd_samples": lambda: RunResult(("fast", "faster")),  # type: ignore[arg-type]
    "no_durations": lambda: RunResult((float("nan"), -1.0, 0.0)),
    "complex": lambda: RunResult((1e-3, 2j)),  # type: ignore[arg-type]
    "many_samples": lambda: RunResult((1e-3,) * 1_000_000, max_error=0.0),
    "odd_kind": lambda: RunResult(error_kind="no such kind"),  # type: ignore[arg-type]
    "odd_text": lambda: RunResult(error_kind="run_error", error_text=b"\xff"),  # type: ignore[arg-type]
    "odd_max_error": lambda: RunResult((1e-3,), max_error="large"),  # type: ignore[arg-type]
    "odd_conditions": lambda: RunResult((1e-3,), conditions={"x": object}),
}


def describe_target(spec: str) -> TargetInfo:
    """Describe, or fail to."""
    return _answer("describe_target", spec, lambda: toy.describe_target(spec))


def propose(request: SearchRequest) -> list[Candidate]:
    """Search, or fail to."""
    return _answer("propose", str(request.seed), lambda: toy.propose(request))


def build(request: BuildRequest) -> BuildResult:
    """Build, or fail to; what is unscheduled has a name of its own."""
    return _answer("build", request.trace or "unscheduled", lambda: toy.build(request))


def run(request: RunRequest) -> RunResult:
    """Run, or fail to."""
    return _answer("run", trace_of(request.artifact), lambda: toy.run(request))


def run_interleaved(requests: list[RunRequest], n_turns: int) -> list[RunResult]:
    """Time a final, or fail to."""
    subject = " ".join(sorted(trace_of(request.artifact) for request in requests))
    return _answer("run_interleaved", subject, lambda: toy.run_interleaved(requests, n_turns))


def reference(request: ReferenceRequest) -> bytes:
    """Compute a reference, or fail to."""
    subject = json.loads(request.ir)["name"]
    return _answer("reference", f"{subject} {request.inputs}", lambda: toy.reference(request))


def train(kind: str, seed: int, rows: list[tuple[int, bytes, float | None]]) -> bytes:
    """Train as :mod:`tuner.cost_models.training` does, or fail to."""
    from tuner.cost_models import training

    return _answer("train", str(len(rows)), lambda: training.train(kind, seed, rows))


def _answer(function: str, subject: str, work: Callable[[], Answer]) -> Answer:
    fault = due(function, subject)
    if fault in GARBAGE:
        return cast("Answer", GARBAGE[fault]())
    strike(fault)
    return work()


def trace_of(artifact: str) -> str:
    """Return the trace that an artifact was built from."""
    trace: str = json.loads((Path(artifact) / "kernel.json").read_text())["trace"]
    return trace
