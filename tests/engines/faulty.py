"""The real engine, with the faults that a file asks for; see :mod:`tests.engines.faults`."""

# mypy: disable-error-code="no-redef"

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from tests.engines.faults import InjectedError, due, strike
from tuner.engines.base import (
    BuildRequest,
    BuildResult,
    Candidate,
    ReferenceRequest,
    RunRequest,
    RunResult,
    SearchRequest,
)
from tuner.engines.relax import worker as real
from tuner.engines.relax.codegen import build as build_module
from tuner.engines.relax.run import artifacts as run_module
from tuner.engines.relax.worker import *  # noqa: F403  but for what is defined here

NAME = "tests.engines.faulty"
_TRACE = "trace.txt"
# It takes seconds, and tells tests nothing.
del measure_peaks  # noqa: F821


def build(request: BuildRequest) -> BuildResult:
    """Build, or fail to; an unscheduled build is never hit."""
    fault = due("build", request.trace) if request.trace else ""
    if fault == "raise":
        with _patched(build_module, "split_packing", _raise):
            return real.build(request)
    if fault == "silent":
        with _patched(build_module, "split_packing", _without_body):
            return _marked(real.build(request), request.trace)
    strike(fault)
    return _marked(real.build(request), request.trace)


def run(request: RunRequest) -> RunResult:
    """Run, or fail to."""
    fault = due("run", (Path(request.artifact) / _TRACE).read_text())
    if fault == "raise":
        with _patched(run_module.Kernel, "call", _raise):
            return real.run(request)
    if fault == "garbage":
        with _patched(run_module.Kernel, "call", _garbled):
            return real.run(request)
    if fault == "no_durations":
        return RunResult((float("nan"), -1.0, 0.0))
    strike(fault)
    return real.run(request)


def run_interleaved(requests: list[RunRequest], n_turns: int) -> list[RunResult]:
    """Time a final, or fail to."""
    strike(due("run_interleaved", requests[0].artifact))
    return real.run_interleaved(requests, n_turns)


def reference(request: ReferenceRequest) -> bytes:
    """Compute a reference, or fail to."""
    strike(due("reference", request.inputs))
    return real.reference(request)


def propose(request: SearchRequest) -> list[Candidate]:
    """Search, or fail to."""
    fault = due("propose", str(request.seed))
    if fault == "nothing":
        return []
    strike(fault)
    return real.propose(request)


def _marked(result: BuildResult, trace: str) -> BuildResult:
    """Leave the trace beside the artifact, for the run to know it by."""
    if result.artifact:
        (Path(result.artifact) / _TRACE).write_text(trace)
    return result


@contextlib.contextmanager
def _patched(owner: Any, name: str, replacement: Any) -> Any:
    """Give an inner function another body; the old one is its first argument."""
    old = getattr(owner, name)
    setattr(owner, name, lambda *args: replacement(old, *args))
    try:
        yield
    finally:
        setattr(owner, name, old)


def _raise(*_args: Any) -> Any:
    raise InjectedError("injected")


def _without_body(split: Any, function: Any) -> Any:
    """Split a kernel that computes nothing and returns at once: very fast, very wrong."""
    import tvm

    return split(function.with_body(tvm.tirx.Evaluate(tvm.tirx.IntImm("int32", 0))))


def _garbled(call: Any, kernel: Any) -> list[np.ndarray[Any, Any]]:
    """One output element is off by a hundredth of the largest."""
    (output,) = call(kernel)
    output = output.copy()
    output.flat[output.size // 2] += 1e-2 * np.abs(output).max()
    return [output]
