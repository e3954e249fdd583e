"""An engine without a compiler: every answer is a pure function of its request, in microseconds.

A network has four tasks: two that every network shares, one of its batch size, and a tiny one
whose space holds ``TINY`` programs. Settings come from the environment of the coordinator:
``TOY_BUILD_SECS`` is slept in every build, ``TOY_RUN_SECS`` in every run, ``TOY_SPLIT_SECS`` when a
network with a batch of ``SLOW_BATCH`` is split into tasks; ``TOY_OFFSET`` is added to every output
of a network.
Every latency is multiplied by the number in the file that ``SLOWNESS_FILE`` names, if there is one.
Programs of the tasks in ``TOY_WRONG``, as ``heavy,light``, are wrong; those in ``TOY_LOST`` lose
their worker.
Workers import this module by name, so the repository root has to be on their path.
"""

import hashlib
import io
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np

from tuner import cost_models
from tuner.cost_models import features
from tuner.engines.base import (
    BuildRequest,
    BuildResult,
    Candidate,
    ExtractedTask,
    Extraction,
    LinkedProgram,
    LinkRequest,
    LinkResult,
    ModelFile,
    NetworkRun,
    ObjectRequest,
    ObjectResult,
    ReferenceRequest,
    RunRequest,
    RunResult,
    SanitizerResult,
    SearchRequest,
    TargetInfo,
    WorkloadProfile,
)
from tuner.errors import ModelError, TargetError

NAME = "tests.engines.toy"
SPEC = '{"kind":"toy"}'
N_TASKS = 4
TINY = 5
SLOW_BATCH = 99


def describe_target(spec: str) -> TargetInfo:
    """Know ``llvm``, and ``cuda`` as a target of another machine."""
    if spec not in ("llvm", "cuda", SPEC):
        raise TargetError(f"unknown target {spec!r}")
    problem = "this machine has no such device" if spec == "cuda" else ""
    return TargetInfo(SPEC, "llvm", {"name": "toy"}, problem=problem)


def extract(model: ModelFile, target: str) -> Extraction:
    """Give every network the same tasks, but for one that depends on its batch size."""
    if target != SPEC:
        raise ModelError(f"toy networks have no tasks on {target}")
    shape, _ = next(iter(model.inputs.values()))
    if shape[0] == SLOW_BATCH:
        time.sleep(float(os.environ.get("TOY_SPLIT_SECS", "0")))
    tasks = (
        make_task("heavy", weight=3, base_secs=4e-3),
        make_task("light", weight=1, base_secs=1e-3),
        make_task(f"batch_{shape[0]}", weight=2, base_secs=2e-3),
        make_task("tiny", weight=1, base_secs=1e-4, n_programs=TINY),
    )
    return Extraction(tasks, sum(task.weight for task in tasks), ("a toy network",))


def make_task(name: str, *, weight: int, base_secs: float, n_programs: int = 400) -> ExtractedTask:
    """Describe a task whose programs take from once to twice ``base_secs``."""
    ir = json.dumps({"name": name, "base_secs": base_secs, "n_programs": n_programs}).encode()
    workload = hashlib.sha256(ir).hexdigest()
    return ExtractedTask(workload, f"{name}[1]", ir, weight, base_secs * 1e9)


def define(irs: list[bytes]) -> list[str]:
    """Show a workload, which is JSON."""
    return [ir.decode() for ir in irs]


def profile(irs: list[bytes]) -> list[WorkloadProfile]:
    """Describe all workloads alike; the peaks of a toy device are unknown."""
    return [WorkloadProfile("", "dense", "float32", 4096) for _ in irs]


def propose(request: SearchRequest) -> list[Candidate]:
    """Draw unmeasured programs, and let the cost model choose among them."""
    task = json.loads(request.ir)
    known = {measured.module_hash for measured in request.measured}
    fresh = [i for i in range(task["n_programs"]) if f"{task['name']}-{i}" not in known]
    draw = random.Random(request.seed)
    drawn = draw.sample(fresh, min(len(fresh), 4 * request.n_candidates + request.n_random))
    if not drawn:
        return []
    arrays = [_features(task["name"], index) for index in drawn]
    scores = cost_models.load(request.cost_model).predict(arrays)
    ranked = sorted(zip(scores, drawn, arrays, strict=True), key=lambda each: (-each[0], each[1]))
    best = ranked[: request.n_candidates]
    others = draw.sample(ranked[len(best) :], min(len(ranked) - len(best), request.n_random))
    return [
        Candidate(
            trace=json.dumps({"task": task["name"], "program": index}),
            module_hash=f"{task['name']}-{index}",
            features=features.pack(array),
            score=float(score),
            origin="evolution" if position < len(best) else "random",
        )
        for position, (score, index, array) in enumerate([*best, *others])
    ]


def build(request: BuildRequest) -> BuildResult:
    """Write what a run needs to know."""
    time.sleep(float(os.environ.get("TOY_BUILD_SECS", "0")))
    folder = Path(request.out)
    folder.mkdir(parents=True, exist_ok=True)
    described = {**json.loads(request.ir), "trace": request.trace}
    (folder / "kernel.json").write_text(json.dumps(described))
    return BuildResult(str(folder))


def print_kernel(request: BuildRequest, parts: list[str]) -> dict[str, str]:
    """Print the trace; a toy has no assembly."""
    if "assembly" in parts:
        raise TargetError("a toy has no assembly")
    return {part: f"{part} of {request.trace}" for part in parts}


def calibration_kernel(target: str) -> bytes:
    """Describe a task like any other."""
    assert target == SPEC
    return make_task("calibration", weight=1, base_secs=5e-3).ir


def reference(request: ReferenceRequest) -> bytes:
    """Return an output; every program of a task has the same."""
    assert request.target == SPEC
    stream = io.BytesIO()
    np.save(stream, np.array([json.loads(request.ir)["base_secs"]]))
    return stream.getvalue()


def run(request: RunRequest) -> RunResult:
    """Look the latency of a program up in its hash; the slowest tenth fails."""
    time.sleep(float(os.environ.get("TOY_RUN_SECS", "0")))
    described = json.loads((Path(request.artifact) / "kernel.json").read_text())
    if described["name"] in os.environ.get("TOY_LOST", "").split(","):
        os.kill(os.getpid(), signal.SIGKILL)
    if described["name"] in os.environ.get("TOY_WRONG", "").split(","):
        return RunResult(error_kind="wrong_result", error_text="off by 1", max_error=1.0)
    for reference in request.references:
        assert np.load(reference) == described["base_secs"]
    share = _share(described["trace"])
    if share > 0.9:
        return RunResult(error_kind="run_error", error_text="the toy broke")
    latency = run_secs_of(described["trace"], described["base_secs"]) * _slowness()
    return RunResult((latency, latency * 1.01, latency * 0.99), max_error=0.0)


def run_interleaved(requests: list[RunRequest], n_turns: int) -> list[RunResult]:
    """Repeat the samples of a run."""
    results = [run(request) for request in requests]
    return [RunResult((result.run_secs or ()) * n_turns) for result in results]


def sanitize(artifact: str, target: str) -> tuple[SanitizerResult, ...]:
    """Find a race in the faster half of the programs."""
    assert target == SPEC
    described = json.loads((Path(artifact) / "kernel.json").read_text())
    n_errors = int(_share(described["trace"]) < 0.5)
    return (SanitizerResult("racecheck", n_errors, "Race reported" if n_errors else ""),)


def compile_subgraph(request: ObjectRequest) -> ObjectResult:
    """Write what the object depends on."""
    described = {"ir": request.ir.decode(), "trace": request.trace, "symbol": request.symbol}
    (Path(request.out) / "kernel.o").write_text(json.dumps(described))
    return ObjectResult({}, 1e-3)


def link_network(request: LinkRequest) -> LinkResult:
    """Keep the first model itself: running the library runs it under ONNX Runtime."""
    import onnx

    shutil.copy(request.models[0].path, Path(request.out) / "lib.so")
    programs = []
    for number, model in enumerate(request.models):
        calls = {task.workload: task.weight for task in extract(model, request.target).tasks}
        for workload in calls:
            described = json.loads(
                (Path(request.objects[workload].folder) / "kernel.o").read_text()
            )
            assert described["symbol"] == request.objects[workload].symbol
        outputs = tuple(
            (
                tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim),
                str(onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)),
            )
            for info in onnx.load(model.path).graph.output
        )
        programs.append(LinkedProgram(f"main_{number}", (), calls, outputs))
    return LinkResult(("lib.so",), tuple(programs), ())


def run_network(request: NetworkRun) -> tuple[float, ...]:
    """Run the model, and claim a millisecond for every run."""
    from tuner.library.arrays import read_arrays, write_arrays
    from tuner.peers.base import PeerModel
    from tuner.peers.onnxruntime import run_model

    run_model(PeerModel(str(Path(request.library) / "lib.so"), {}, {}, 1, "cpu"), request)
    if request.outputs:
        offset = float(os.environ.get("TOY_OFFSET", "0"))
        outputs = read_arrays(request.outputs)
        write_arrays(
            request.outputs,
            {name: (array + offset).astype(array.dtype) for name, array in outputs.items()},
        )
    return (1e-3,) * request.n_runs


def run_secs_of(trace: str, base_secs: float) -> float:
    """Return the latency of a program by its trace."""
    return base_secs * (1 + _share(trace))


def _slowness() -> float:
    file = os.environ.get("SLOWNESS_FILE")
    return float(Path(file).read_text()) if file else 1.0


def _share(text: str) -> float:
    """Hash a text to a number in [0, 1)."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:12], 16) / 16**12


def _features(task: str, index: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Two rows of eight numbers; the first number is the latency, so that there is a lesson."""
    rows = np.random.default_rng([len(task), index]).random((2, 8), dtype=np.float32)
    rows[:, 0] = _share(json.dumps({"task": task, "program": index}))
    return rows


def clock_secs(target: str, period_secs: float) -> float | None:
    """Return None, because this engine has no clock kernel."""
