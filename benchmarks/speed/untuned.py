"""Kernels that cost an untuned library the most, each timed alone and beside its roof.

The roof of a kernel is the larger of its arithmetic at the peak of the cores and of its traffic at
the bandwidth of the shared cache, both given. Prints one JSON line for each network, with the sum
of its kernels over the time of ONNX Runtime, and the kernels that lose the most to their roofs.

    python -m benchmarks.speed.untuned zoo:resnet-18 model.onnx --top 8
"""

import argparse
import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm

from tuner.engines.base import BuildRequest, variant_of
from tuner.engines.relax.codegen.build import build
from tuner.engines.relax.graph.extract import Subgraph, find_subgraphs
from tuner.engines.relax.graph.pipeline import lower
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.run.artifacts import load_kernel
from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.target.targets import describe_target, make_target
from tuner.engines.verification import input_sets
from tuner.networks.worker import load_model

_SAMPLE_SECS = 0.03
# Size of dynamic dimensions other than the first.
_LENGTH = 128
_MIN_SAMPLES, _MAX_SAMPLES = 3, 30


@dataclass(frozen=True)
class _Roofs:
    """Peak operations and bytes a second."""

    flop: float
    n_bytes: float


@dataclass(frozen=True)
class _Timed:
    """A kernel by rule: its calls, its time, and the least it could take.

    Attributes:
        rule: ``tiles``, ``rows``, a variant or ``none``, the rule that scheduled it.
        secs: Seconds of one call.
        roof_secs: Seconds of one call at the roof.
        build_secs: Seconds to compute the schedule and compile it.
    """

    name: str
    rule: str
    n_calls: int
    secs: float
    roof_secs: float
    flop: float
    build_secs: float

    @property
    def loss(self) -> float:
        """Seconds that all calls lose to their roof."""
        return self.n_calls * (self.secs - self.roof_secs)

    def describe(self) -> str:
        """Return one line for a reader."""
        rate = self.flop / self.secs / 1e9
        return (
            f"{self.n_calls} x {self.secs * 1e6:.0f} us, roof {self.roof_secs * 1e6:.0f}, "
            f"{rate:.1f} GFLOPS, {self.rule}, {self.name}"
        )


def main() -> None:
    """Run the measurement of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--top", type=int, default=10)
    parser.add_argument("--gflops", type=float, default=120.0, help="peak of a core")
    parser.add_argument("--gigabytes", type=float, default=20.0, help="bandwidth per second")
    parser.add_argument("--dump", type=Path, help="folder for the definitions of slow kernels")
    arguments = parser.parse_args()
    tvm.get_global_func("runtime.config_threadpool")(1, 1)
    roofs = _Roofs(arguments.gflops * 1e9, arguments.gigabytes * 1e9)
    for reference in arguments.models:
        print(json.dumps(_run(reference, roofs, arguments.top, arguments.dump)), flush=True)


def _run(reference: str, roofs: _Roofs, top: int, dump: Path | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        model = load_model(reference, _fixed_shapes(reference), None, folder)
        target = make_target(describe_target("llvm").spec, intrinsics=False)
        started = time.perf_counter()
        subgraphs = find_subgraphs(lower(model.file, target).module)
        lower_secs = time.perf_counter() - started
        timed = [(graph, _time(graph, roofs)) for graph in subgraphs]
        peer_secs = _onnxruntime_secs(model.file.path)
    timed.sort(key=lambda pair: pair[1].loss, reverse=True)
    if dump:
        _dump(dump, model.name, timed[:top])
    total = sum(each.secs * each.n_calls for _, each in timed)
    rules = Counter(each.rule for _, each in timed)
    return {
        "benchmark": "untuned",
        "model": model.name,
        "kernels": dict(rules),
        "sum_ms": round(total * 1e3, 3),
        "onnxruntime_ms": round(peer_secs * 1e3, 3),
        "ratio": round(total / peer_secs, 2),
        "lower_secs": round(lower_secs, 1),
        "build_secs": round(sum(each.build_secs for _, each in timed), 1),
        "slowest": [each.describe() for _, each in timed[:top]],
    }


def _fixed_shapes(reference: str) -> dict[str, tuple[int, ...]]:
    """Return shapes for inputs with dynamic dimensions: a batch of 1, and 128 of all else."""
    if not reference.endswith(".onnx"):
        return {}
    graph = onnx.load(reference, load_external_data=False).graph
    weights = {each.name for each in graph.initializer}
    shapes = {
        each.name: tuple(
            dim.dim_value or (_LENGTH if axis else 1)
            for axis, dim in enumerate(each.type.tensor_type.shape.dim)
        )
        for each in graph.input
    }
    return {name: shape for name, shape in shapes.items() if name not in weights}


def _dump(folder: Path, name: str, slow: Sequence[tuple[Subgraph, _Timed]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, (graph, each) in enumerate(slow):
        text = f"# {each.describe()}\n{graph.module.script()}"
        (folder / f"{name}-{number:02d}.py").write_text(text)
        (folder / f"{name}-{number:02d}.ir").write_bytes(workloads.dump(graph.module))


def _time(graph: Subgraph, roofs: _Roofs) -> _Timed:
    spec = describe_target("llvm").spec
    target = make_target(spec)
    module = graph.module
    started = time.perf_counter()
    variant = ranking.compute_variant(module, target)
    trace = variant or ranking.compute_trace(module, target)
    rule = variant_of(variant) or ("rows" if trace else "none")
    if "SamplePerfectTile" in trace:
        rule = "tiles"
    with tempfile.TemporaryDirectory() as folder:
        built = build(BuildRequest(workloads.dump(module), spec, trace, folder))
        if not built.artifact:
            rule = f"rejected ({built.error_text[:80]})"
            built = build(BuildRequest(workloads.dump(module), spec, "", folder))
        build_secs = time.perf_counter() - started
        secs = _kernel_secs(built.artifact, spec)
    flop = workloads.flop_of(module)
    n_bytes = sum(_n_bytes(param) for param in module["main"].params)
    roof = max(flop / roofs.flop, n_bytes / roofs.n_bytes)
    return _Timed(graph.name, rule, graph.n_calls, secs, roof, flop, build_secs)


def _n_bytes(param: Any) -> float:
    n_elements = math.prod(int(size) for size in param.shape)
    return n_elements * float(np.dtype(str(param.dtype)).itemsize)


def _kernel_secs(artifact: str, spec: str) -> float:
    kernel = load_kernel(artifact, spec)
    kernel.bind(input_sets.draw(input_sets.harmless(kernel.inputs)))
    function, arguments = kernel.module["kernel"], (*kernel.arguments, *kernel.outputs)
    return _cpu_secs(lambda: function(*arguments))


def _cpu_secs(run: Callable[[], object]) -> float:
    """Return the least CPU time of this thread, which other processes change little."""
    run()
    started = time.perf_counter()
    samples: list[float] = []
    while len(samples) < _MIN_SAMPLES or (
        len(samples) < _MAX_SAMPLES and time.perf_counter() - started < _SAMPLE_SECS
    ):
        begun = time.thread_time()
        run()
        samples.append(time.thread_time() - begun)
    return min(samples)


def _onnxruntime_secs(path: str) -> float:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = [(each.shape, _dtype(each.type)) for each in session.get_inputs()]
    arrays = input_sets.draw(input_sets.harmless(inputs))
    feeds = {each.name: value for each, value in zip(session.get_inputs(), arrays, strict=True)}
    return _cpu_secs(lambda: session.run(None, feeds))


def _dtype(name: str) -> str:
    inner = name.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64"}.get(inner, inner)


if __name__ == "__main__":
    main()
