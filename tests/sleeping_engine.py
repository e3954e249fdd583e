"""Engine whose kernels sleep on the device that loads them; search and build are cheap.

A kernel is a real TVM library that sleeps: program ``i`` of a task
takes ``1 + i % 5 / 4`` times ``NAP_SECS``, a variable of the environment, so that a record of
another kernel is detected. Workers import this module by name, so the repository root has to be on
their path.
"""

import hashlib
import json
import os
import random
import tempfile
import warnings
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tuner.cost_models import features
from tuner.engines.base import (
    BuildRequest,
    BuildResult,
    Candidate,
    ExtractedTask,
    Extraction,
    ModelFile,
    ReferenceRequest,
    RemoteAnswer,
    RemoteServer,
    RunResult,
    SearchRequest,
    TargetInfo,
)

with warnings.catch_warnings():
    # TVM prints deprecation warnings when it is imported.
    warnings.simplefilter("ignore")
    import tvm
    from tvm.script import from_source
    from tvm.target import Target

    from tuner.engines.linker import link_shared
    from tuner.engines.relax.run import artifacts as kernels
    from tuner.engines.relax.run import rpc
    from tuner.engines.verification import comparison, input_sets, references

NAME = "tests.sleeping_engine"
SPEC = '{"kind":"llvm","mcpu":"generic"}'
BASE_SECS = float(os.environ.get("NAP_SECS", "0.05"))
N_TASKS = 16
N_CLASSES = 5
# Special traces: the kernel never ends, writes a wrong output, or crashes.
HANG, WRONG, CRASH = "hang", "wrong", "crash"
_KERNEL = """
@T.prim_func
def kernel(a: T.handle, b: T.handle):
    nap = T.match_buffer(a, (1,), "float32")
    out = T.match_buffer(b, (1,), "float32")
    T.evaluate(T.call_extern("int32", "{call}", {micros}))
    out[0] = T.float32({value})
"""


def describe_target(_spec: str) -> TargetInfo:
    """Describe every target alike."""
    return TargetInfo(SPEC, "llvm", {"name": "nap"})


def extract(_model: ModelFile, _target: str) -> Extraction:
    """Give every network the same tasks."""
    tasks = tuple(_task(number) for number in range(N_TASKS))
    return Extraction(tasks, len(tasks), ("a sleeping network",))


def _task(number: int) -> ExtractedTask:
    ir = json.dumps({"task": number}).encode()
    return ExtractedTask(hashlib.sha256(ir).hexdigest(), f"nap[{number}]", ir, 1, 1e6)


def propose(request: SearchRequest) -> list[Candidate]:
    """Draw unmeasured programs."""
    known = {measured.module_hash for measured in request.measured}
    fresh = [f"program-{i}" for i in range(10_000) if f"program-{i}" not in known]
    drawn = random.Random(request.seed).sample(fresh, request.n_candidates)
    packed = features.pack(np.zeros((1, 8), dtype=np.float32))
    return [Candidate(name, name, packed, 0.0) for name in drawn]


def sleep_secs(trace: str, base_secs: float = BASE_SECS) -> float:
    """Return the seconds that a trace's kernel sleeps; special traces equal the first program."""
    number = int(trace.rpartition("-")[2]) if trace.startswith("program-") else 0
    return base_secs * (1 + number % N_CLASSES / 4)


def build(request: BuildRequest) -> BuildResult:
    """Write the shared library and its description."""
    folder = Path(request.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.so").write_bytes(_library(request.trace))
    described = [{"shape": [1], "dtype": "float32"}] * 2
    (folder / "kernel.json").write_text(
        json.dumps({"arguments": described, "n_outputs": 1, "packed": [], "weights": []})
    )
    return BuildResult(str(folder))


def _library(trace: str) -> bytes:
    """Compile the kernel; traces that sleep alike share it."""
    call = {HANG: "pause", CRASH: "abort"}.get(trace, "usleep")
    return _compiled(call, round(sleep_secs(trace) * 1e6), 2.0 if trace == WRONG else 1.0)


@lru_cache(maxsize=16)
def _compiled(call: str, micros: int, value: float) -> bytes:
    function = from_source(_KERNEL.format(call=call, micros=micros, value=value))
    module = tvm.tirx.build(tvm.IRModule({"kernel": function}), target=Target(json.loads(SPEC)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        module.write_to_file(str(path / "kernel.o"), "o")
        link_shared([path / "kernel.o"], path / "kernel.so")
        return (path / "kernel.so").read_bytes()


def calibration_kernel(_target: str) -> bytes:
    """Return a kernel that sleeps as long as the first program of any task."""
    return _task(N_TASKS).ir


def reference(request: ReferenceRequest) -> bytes:  # noqa: ARG001
    """Return the output of every correct kernel."""
    inputs = input_sets.harmless([((1,), "float32")])
    checksum = input_sets.checksum(input_sets.draw(inputs))
    expected = comparison.Expected(np.ones(1, np.float32), None)
    return references.dump(references.Reference(inputs, checksum, (expected,)))


def run(request: Any) -> RunResult:
    """Run a kernel on this machine."""
    return kernels.run(request)


def call_remotely(server: RemoteServer, function: str, *args: Any) -> RemoteAnswer:
    """Run a kernel on a remote device, as the real engine does."""
    if function != "describe_target":
        return rpc.call_remotely(server, function, *args)
    answer = rpc.call_remotely(server, function, SPEC)
    return replace(answer, value=answer.value and replace(answer.value, spec=SPEC))
