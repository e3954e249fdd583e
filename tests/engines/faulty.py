"""The real engine, with faults that a control file asks for.

The coordinator's environment names the file in ``FAULTY_CONTROL``; it is read at every call, so
that a test changes the faults of workers that run. It holds, by function (``build``, ``run``,
``propose``, ``reference``, ``run_interleaved``), the faults of which the first that is due
strikes::

    {"run": [{"fault": "hang", "only": [3735928559]}, {"fault": "kill", "one_in": 5}]}

Which calls are hit is a pure function of their traces: those whose checksum is in ``only``, or
divides by ``one_in``; without either, all. With ``once`` only the first attempt is hit.
"""

import contextlib
import ctypes
import json
import os
import signal
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from tuner.engines.base import (
    BuildRequest,
    BuildResult,
    Candidate,
    RunRequest,
    RunResult,
    SearchRequest,
)
from tuner.engines.relax import build as build_module
from tuner.engines.relax import run as run_module
from tuner.engines.relax import worker as real
from tuner.engines.relax.worker import (
    compile_subgraph,
    describe_target,
    extract,
    link_network,
    run_network,
)

__all__ = [
    "build",
    "compile_subgraph",
    "describe_target",
    "extract",
    "link_network",
    "propose",
    "reference",
    "run",
    "run_interleaved",
    "run_network",
]

NAME = "tests.engines.faulty"
CONTROL = "FAULTY_CONTROL"
_TRACE = "trace.txt"


class InjectedError(Exception):
    """What a fault raises."""


def build(request: BuildRequest) -> BuildResult:
    """Build, or fail to; an unscheduled build is never hit."""
    fault = _fault("build", request.trace) if request.trace else ""
    if fault == "raise":
        with _patched(build_module, "split_packing", _raise):
            return real.build(request)
    if fault == "silent":
        with _patched(build_module, "split_packing", _without_body):
            return _marked(real.build(request), request.trace)
    _strike(fault)
    return _marked(real.build(request), request.trace)


def run(request: RunRequest) -> RunResult:
    """Run, or fail to."""
    fault = _fault("run", (Path(request.artifact) / _TRACE).read_text())
    if fault == "raise":
        with _patched(run_module.Kernel, "call", _raise):
            return real.run(request)
    if fault == "garbage":
        with _patched(run_module.Kernel, "call", _garbled):
            return real.run(request)
    if fault == "no_durations":
        return RunResult((float("nan"), -1.0, 0.0))
    _strike(fault)
    return real.run(request)


def run_interleaved(requests: list[RunRequest], n_turns: int) -> list[RunResult]:
    """Time a final, or fail to."""
    _strike(_fault("run_interleaved", requests[0].artifact))
    return real.run_interleaved(requests, n_turns)


def reference(artifact: str, target: str, out: str) -> None:
    """Compute a reference, or fail to."""
    _strike(_fault("reference", Path(out).name))
    real.reference(artifact, target, out)


def propose(request: SearchRequest) -> list[Candidate]:
    """Search, or fail to."""
    fault = _fault("propose", str(request.seed))
    if fault == "nothing":
        return []
    _strike(fault)
    return real.propose(request)


def _fault(function: str, subject: str) -> str:
    """Return the fault that is due to a call, or an empty text."""
    control = Path(os.environ[CONTROL])
    faults = json.loads(control.read_text()).get(function, []) if control.is_file() else []
    checksum = zlib.crc32(subject.encode())
    for each in faults:
        if checksum % each.get("one_in", 1) or checksum not in each.get("only", [checksum]):
            continue
        if each.get("once"):
            marker = control.with_name(f"{function}-{each['fault']}-{checksum}.hit")
            try:
                marker.touch(exist_ok=False)
            except FileExistsError:
                continue
        return str(each["fault"])
    return ""


def _strike(fault: str) -> None:
    """Do what the fault does to a process."""
    if fault == "escape":
        raise InjectedError("injected")
    if fault == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    if fault == "segfault":
        ctypes.string_at(0)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    if fault == "exit":
        os._exit(7)


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


def _garbled(call: Any, kernel: Any) -> np.ndarray[Any, Any]:
    """One output element is off by a hundredth of the largest."""
    output: np.ndarray[Any, Any] = call(kernel).copy()
    output.flat[output.size // 2] += 1e-2 * np.abs(output).max()
    return output
