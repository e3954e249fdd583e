"""Engine of 200 tasks that burns the same processor time for every trial.

Real candidates differ in cost, so the tuning rates of two minutes differ by more than a service
may slow them down. Here a search, a build and a run each hash a fixed number of bytes; a run
reports its duration, so its latencies show disturbances. Workers import this module by name, so
the repository root has to be on their path.
"""

import hashlib
import json
import random
import time
from pathlib import Path

import numpy as np

from tuner.cost_models import features
from tuner.engines.base import (
    BuildRequest,
    BuildResult,
    Candidate,
    ExtractedTask,
    Extraction,
    LinkRequest,
    LinkResult,
    ModelFile,
    NetworkRun,
    ObjectRequest,
    ObjectResult,
    ReferenceRequest,
    RunRequest,
    RunResult,
    SearchRequest,
    TargetInfo,
)
from tuner.errors import ModelError, TargetError

N_TASKS = 200
SPEC = '{"kind":"busy"}'
# About 1 ms each on a CPU with instructions for SHA-256.
_BLOCK = bytes(1_500_000)
_SEARCH_BLOCKS, _BUILD_BLOCKS, _SAMPLE_BLOCKS = 100, 100, 15
_N_SAMPLES = 5


def describe_target(spec: str) -> TargetInfo:
    """Describe ``llvm``, the only target."""
    if spec not in ("llvm", SPEC):
        raise TargetError(f"unknown target {spec!r}")
    return TargetInfo(SPEC, "llvm", {"name": "busy"})


def extract(model: ModelFile, target: str) -> Extraction:  # noqa: ARG001  signature of the contract
    """Give every network the same tasks."""
    tasks = tuple(_task(number) for number in range(N_TASKS))
    return Extraction(tasks, sum(task.weight for task in tasks), ("a busy network",))


def _task(number: int) -> ExtractedTask:
    ir = json.dumps({"task": number}).encode()
    workload = hashlib.sha256(ir).hexdigest()
    name = f"fused_conv2d_add_relu[1, {16 * number + 16}, 56, 56]"
    return ExtractedTask(workload, name, ir, 1 + number % 4, 1e7 * (1 + number % 17))


def propose(request: SearchRequest) -> list[Candidate]:
    """Draw new programs."""
    _burn(_SEARCH_BLOCKS)
    draw = random.Random(request.seed)
    packed = features.pack(np.zeros((2, 8), dtype=np.float32))
    names = [f"{draw.getrandbits(64):016x}" for _ in range(request.n_candidates)]
    traces = [json.dumps({"program": name, "decisions": "x" * 1_700}) for name in names]
    return [Candidate(trace, name, packed, 0.0) for trace, name in zip(traces, names, strict=True)]


def build(request: BuildRequest) -> BuildResult:
    """Burn the time of a build."""
    _burn(_BUILD_BLOCKS)
    folder = Path(request.out)
    folder.mkdir(parents=True, exist_ok=True)
    return BuildResult(str(folder))


def calibration_kernel(target: str) -> bytes:  # noqa: ARG001
    """Return a kernel that burns as much time as any task."""
    return json.dumps({"task": N_TASKS}).encode()


def reference(request: ReferenceRequest) -> bytes:  # noqa: ARG001
    """Return something that no run reads."""
    return b"reference"


def run(request: RunRequest) -> RunResult:  # noqa: ARG001
    """Take samples of the same work."""
    return RunResult(tuple(_burn(_SAMPLE_BLOCKS) for _ in range(_N_SAMPLES)), max_error=0.0)


def run_interleaved(requests: list[RunRequest], n_turns: int) -> list[RunResult]:
    """Take samples of the same work for each request."""
    return [
        RunResult(tuple(_burn(_SAMPLE_BLOCKS) for _ in range(n_turns)), max_error=0.0)
        for _ in requests
    ]


def compile_subgraph(request: ObjectRequest) -> ObjectResult:
    """Refuse, because there is nothing to compile.

    Raises:
        ModelError: Always.
    """
    raise ModelError(f"{request.target} subgraphs cannot be compiled")


def link_network(request: LinkRequest) -> LinkResult:
    """Refuse, because there is nothing to link.

    Raises:
        ModelError: Always.
    """
    raise ModelError(f"{request.target} networks cannot be built")


def run_network(request: NetworkRun) -> tuple[float, ...]:
    """Refuse, because there is nothing to run.

    Raises:
        ModelError: Always.
    """
    raise ModelError(f"{request.library} cannot be run")


def _burn(n_blocks: int) -> float:
    started = time.perf_counter()
    digest = hashlib.sha256()
    for _ in range(n_blocks):
        digest.update(_BLOCK)
    return time.perf_counter() - started


def clock_secs(target: str, period_secs: float) -> float | None:
    """Return None, because this engine has no clock kernel."""
