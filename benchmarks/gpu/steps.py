"""Steps of the flight, each in a process of its own: python -m benchmarks.gpu.steps OPTIONS.

Nothing here needs TVM's compiler: libraries run in the processes that run torch.
"""

import argparse
import contextlib
import copy
import importlib
import json
import math
import os
import platform
import statistics
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.device_lock import device, lock_benchmarks
from benchmarks.gpu.models.networks import Network
from benchmarks.gpu.models.sizes import FULL, TINY
from benchmarks.gpu.running import COMPILATIONS

Run = Callable[[], Any]
_N_SYNCHRONISED, _N_QUEUED, _N_TURNS, _N_REPLAYS, _N_TRACED = 40, 200, 4, 50, 10
_TRACED = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCH = ("grid", "block", "registers per thread", "shared memory")
_MAX_NAME, _MAX_TRACEBACK = 160, 6000
EAGER, GRAPH = "torch eager", "torch graph"


@dataclass
class Bench:
    """Device of a step, and the results so far.

    Attributes:
        device: ``cuda``, or ``cpu`` to rehearse.
    """

    device: str
    path: Path
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def is_cuda(self) -> bool:
        """True on a GPU."""
        return self.device == "cuda"

    def save(self) -> None:
        """Write the results so far; a kill leaves the file before."""
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.facts, indent=1))
        partial.replace(self.path)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Run a part of the step; note its failure, and go on."""
        begun = time.perf_counter()
        try:
            yield
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            self.facts.setdefault("failures", {})[name] = text[-_MAX_TRACEBACK:]
        self.facts.setdefault("part_secs", {})[name] = time.perf_counter() - begun
        self.save()

    def wait(self) -> None:
        """Wait for the device."""
        if self.is_cuda:
            torch.cuda.synchronize()

    def capture(self, run: Run) -> tuple[Run, Any]:
        """Capture a run as a CUDA graph; return its replay, and what the run returned."""
        for _ in range(3):
            returned = run()
        self.wait()
        if not self.is_cuda:
            return run, returned
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            returned = run()
        graph.replay()
        self.wait()
        return partial(_replay, graph, run), returned

    def queued_us(self, run: Run, n_runs: int) -> tuple[float, float]:
        """Return microseconds a run, of the device and of the host, without waits between runs."""
        self.wait()
        if self.is_cuda:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
        start = time.perf_counter()
        for _ in range(n_runs):
            run()
        host_us = 1e6 * (time.perf_counter() - start) / n_runs
        if not self.is_cuda:
            return host_us, host_us
        last.record()
        last.synchronize()
        return 1e3 * first.elapsed_time(last) / n_runs, host_us

    def race(self, runners: Mapping[str, Run]) -> None:
        """Time runners in turns, every other turn in reverse."""
        n_runs, n_queued, n_turns = (
            (_N_SYNCHRONISED, _N_QUEUED, _N_TURNS) if self.is_cuda else (2, 2, 1)
        )
        samples: dict[str, dict[str, list[float]]] = {
            name: {"latency": [], "device": [], "host": []} for name in runners
        }
        for turn in range(n_turns):
            order = list(runners)
            for name in order if turn % 2 == 0 else reversed(order):
                taken = samples[name]
                self.queued_us(runners[name], n_runs)  # clocks rise with load
                for _ in range(n_runs):
                    start = time.perf_counter()
                    runners[name]()
                    self.wait()
                    taken["latency"].append(1e6 * (time.perf_counter() - start))
                device_us, host_us = self.queued_us(runners[name], n_queued)
                taken["device"].append(device_us)
                taken["host"].append(host_us)
        for name, taken in samples.items():
            summary = {kind: _quartiles(values) for kind, values in taken.items()}
            self.facts.setdefault("times_us", {})[name] = summary
        self.save()


def _replay(graph: Any, _run: Run) -> None:
    """Replay a graph, which holds addresses alone: its run keeps what lies there."""
    graph.replay()


def _quartiles(values: Sequence[float]) -> dict[str, float]:
    low, middle, high = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * [*values]
    )
    return {"median": middle, "low": low, "high": high, "n": len(values)}


class Contest:
    """A network of torch, and the libraries of the same network.

    Args:
        bench: Device and results.
        libraries: Folder with a library ``LABEL/NETWORK.lib`` for each label.
    """

    def __init__(self, bench: Bench, network: Network, libraries: Path) -> None:
        self._bench, self._network = bench, network
        self._arrays = network.inputs()
        self._module = network.module()
        folders = sorted(libraries.glob(f"*/{network.name}.lib"))
        self._libraries = {folder.parent.name: folder for folder in folders}
        with contextlib.suppress(Exception):  # said by the libraries that need it
            importlib.import_module("tuner.engines.relax.library.gpu_programs")

    def enter(self) -> None:
        """Put the network on the device."""
        device = self._bench.device
        self._xs = [torch.from_numpy(array).to(device) for array in self._arrays.values()]
        module, xs = self._module.to(device), list(self._xs)
        if self._network.is_image:
            # Fastest layout of torch's own libraries in float16.
            module = module.to(memory_format=torch.channels_last)
            xs[0] = xs[0].to(memory_format=torch.channels_last)
        self.module, self.xs = module, xs

    def compiled(self, mode: str) -> Run:
        """Return the network of torch, compiled in a mode when it runs first."""
        module = torch.compile(copy.deepcopy(self.module), mode=mode)
        return lambda: _listed(module(*self.xs))

    def eager(self) -> list[Any]:
        """Run the network of torch, and return its outputs."""
        return _listed(self.module(*self.xs))

    def precise(self) -> list[Any]:
        """Return the outputs of the same weights and inputs in float32."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        module = copy.deepcopy(self._module).float()
        with sdpa_kernel(SDPBackend.MATH):
            return _listed(module(*(x.float() for x in self._xs)))

    def each(self, use: Callable[[str, Run, list[Any]], None]) -> None:
        """Load each library and use its label, its run, and the outputs that a run writes.

        A library that fails is noted, and left out.
        """
        from tuner.library.loading import load

        for label, folder in self._libraries.items():
            with self._bench.part(label):
                use(label, *self._prepare(load(folder)))

    def _prepare(self, library: Any) -> tuple[Run, list[Any]]:
        """Run a library once on inputs of the device; return its run and outputs."""
        if not self._bench.is_cuda:
            import tvm

            tensors = [tvm.runtime.tensor(x, tvm.cuda()) for x in self._arrays.values()]
            named = dict(zip(library.inputs, tensors, strict=True))
            library.run_on_device(named)
            return lambda: library.run_on_device(named), []
        named = dict(zip(library.inputs, self._xs, strict=True))
        outputs = {
            name: torch.from_dlpack(value).clone()
            for name, value in library.run_on_device(named).items()
        }
        return lambda: library.run_on_device(named, outputs), list(outputs.values())


def _listed(returned: Any) -> list[Any]:
    return list(returned) if isinstance(returned, (tuple, list)) else [returned]


def self_test(bench: Bench, _contest: Contest | None = None) -> None:
    """Measure what a node of a graph costs, and the bandwidth and products of the device."""
    facts = bench.facts
    facts["versions"] = {
        "python": platform.python_version(), "torch": torch.__version__,
        "numpy": version("numpy"), "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }  # fmt: skip
    if bench.is_cuda:
        properties = torch.cuda.get_device_properties(0)
        facts["device"] = properties.name
        facts["properties"] = {
            k: str(getattr(properties, k)) for k in dir(properties) if k[0] != "_"
        }

    def per_node(run: Run, n_nodes: int) -> float:
        replay, _ = bench.capture(lambda: [run() for _ in range(n_nodes)])
        taken = [bench.queued_us(replay, 1)[0] / n_nodes for _ in range(10)]
        return statistics.median(taken)

    with bench.part("node"):
        x = torch.zeros(128, device=bench.device)
        facts["node_us"] = per_node(lambda: x.add_(1), 400 if bench.is_cuda else 4)
    with bench.part("copies"):
        for n_kib in (64, 512, 4096, 16384, 65536, 1 << 20) if bench.is_cuda else (64,):
            source = torch.zeros(n_kib << 8, device=bench.device)
            copied = torch.empty_like(source)
            us = per_node(partial(copied.copy_, source), 50)
            facts.setdefault("copy_gb_per_sec", {})[f"{n_kib} KiB"] = 2.048 * n_kib / us
    with bench.part("products"):
        for size in (1024, 2048, 4096, 8192) if bench.is_cuda else (64,):
            a, b = (torch.randn(size, size, device=bench.device).half() for _ in range(2))
            us = per_node(partial(torch.mm, a, b, out=torch.empty_like(a)), 10)
            facts.setdefault("product_tflops", {})[str(size)] = 2e-6 * size**3 / us


def measure(bench: Bench, contest: Contest) -> None:
    """Compare outputs with float32, replay for equal bytes, race libraries with torch, and trace.

    Traces come last: they may slow what follows.
    """
    facts = bench.facts
    expected: list[Any] = []
    runners: dict[str, Run] = {}
    facts.update(error={}, equal_replays={})
    with bench.part("float32"):
        expected = contest.precise()
    with bench.part(EAGER):
        facts["error"][EAGER] = worst_error(contest.eager(), expected)
    with bench.part(GRAPH):
        runners[GRAPH], _ = bench.capture(contest.eager)

    def check(label: str, run: Run, outputs: list[Any]) -> None:
        runners[label] = run
        if outputs:
            facts["equal_replays"][label] = _equal_replays(run, outputs)
        runners[f"{label}, in a graph"], _ = bench.capture(run)
        if outputs:
            facts["error"][label] = worst_error(outputs, expected)

    contest.each(check)
    bench.race(runners)
    with bench.part("profile"):
        trace(bench, {label: run for label, run in runners.items() if label in _traced(runners)})


def _traced(runners: Mapping[str, Run]) -> set[str]:
    return {GRAPH, *(name for name in runners if f"{name}, in a graph" in runners)}


def worst_error(outputs: Sequence[Any], expected: Sequence[Any]) -> float:
    """Return the largest error of an output as a share of its norm; not finite if it is not."""
    errors = []
    for output, reference in zip(outputs, expected, strict=True):
        gap = output.double().reshape(reference.shape) - reference.double()
        errors.append(float(gap.norm() / reference.double().norm()))
    return max(errors, key=lambda error: (math.isnan(error), error))


def _equal_replays(run: Run, outputs: Sequence[Any]) -> int:
    """Return how many of 50 runs wrote the same bytes as the run before them."""
    first = [output.clone() for output in outputs]
    n_equal = 0
    for _ in range(_N_REPLAYS):
        for output in outputs:
            output.fill_(float("nan"))
        run()
        pairs = zip(outputs, first, strict=True)
        n_equal += all(torch.equal(a.view(torch.int16), b.view(torch.int16)) for a, b in pairs)
    return n_equal


def compile_torch(bench: Bench, contest: Contest, mode: str) -> None:
    """Compile the network of torch into the caches on disk, while other processes do, too."""
    begun = time.perf_counter()
    # Without the lock of its benchmarks, only one network is compiled at a time.
    with contextlib.nullcontext() if lock_benchmarks() else device():
        run = contest.compiled(mode)
        for _ in range(2):
            run()
        bench.wait()
    bench.facts["compile_secs"] = time.perf_counter() - begun


def race_compiled(bench: Bench, contest: Contest) -> None:
    """Race what torch has compiled, in CUDA graphs, with the libraries and torch's graph."""
    runners: dict[str, Run] = {}
    with bench.part(GRAPH):
        runners[GRAPH], _ = bench.capture(contest.eager)
    for step, mode in COMPILATIONS.items():
        compiled = bench.path.with_name(bench.path.name.replace("race", step, 1))
        if compiled.exists() and "compile_secs" in json.loads(compiled.read_text()):
            with bench.part(f"torch.compile {mode}"):
                runners[f"torch.compile {mode}"], _ = bench.capture(contest.compiled(mode))

    def add(label: str, run: Run, _outputs: list[Any]) -> None:
        runners[f"{label}, in a graph"], _ = bench.capture(run)

    contest.each(add)
    bench.facts["caches"] = dict(torch._dynamo.utils.counters["inductor"])
    bench.race(runners)


def trace(bench: Bench, runners: Mapping[str, Run]) -> None:
    """Time each kernel of runs by CUPTI."""
    kind = ProfilerActivity.CUDA if bench.is_cuda else ProfilerActivity.CPU

    def record(run: Run, n_runs: int) -> dict[str, Any]:
        with profile(activities=[kind]) as recorded:
            for _ in range(n_runs):
                run()
                bench.wait()
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            recorded.export_chrome_trace(file.name)
            events = json.loads(Path(file.name).read_text())["traceEvents"]
        return kernels_of(events, n_runs)

    for number, (label, run) in enumerate(runners.items()):
        if number == 0:
            record(run, 1)  # the first profile of a process may miss events
        bench.facts.setdefault("kernels", {})[label] = record(run, _N_TRACED)
        bench.save()


def kernels_of(events: Sequence[Mapping[str, Any]], n_runs: int) -> dict[str, Any]:
    """Return the kernels of a run in order, and the time from its first to its last.

    Args:
        events: Events of a trace in Chrome's format, with times in microseconds.
        n_runs: Runs in the trace. Times are medians over them; if their kernels differ, kernels are
            grouped by name, and there is no ``span_us``.
    """
    traced = sorted((e for e in events if e.get("cat") in _TRACED), key=lambda e: e["ts"])
    n_kernels, rest = divmod(len(traced), n_runs)
    groups: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for number, event in enumerate(traced):
        groups[event["name"] if rest else number % n_kernels].append(event)
    kernels = [
        {
            "name": group[0]["name"][:_MAX_NAME],
            "us": statistics.median(event["dur"] for event in group),
            "n": len(group) / n_runs,
            **{key: group[0].get("args", {}).get(key) for key in _LAUNCH},
        }
        for group in groups.values()
    ]
    if rest or not kernels:
        return {"kernels": kernels}
    ends = zip(groups[0], groups[n_kernels - 1], strict=True)
    spans = [last["ts"] + last["dur"] - first["ts"] for first, last in ends]
    return {"span_us": statistics.median(spans), "kernels": kernels}


STEPS: dict[str, Callable[..., None]] = {
    "self-test": self_test,
    "measure": measure,
    **{step: partial(compile_torch, mode=mode) for step, mode in COMPILATIONS.items()},
    "race": race_compiled,
}


def main() -> None:
    """Run the step of the command line; its results are in a file, whatever happens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("network")
    parser.add_argument("libraries", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    bench = Bench(arguments.device, arguments.results)
    with bench.part(arguments.step), torch.no_grad():
        torch.backends.cudnn.benchmark = True  # cuDNN tries its algorithms
        contest = None
        if arguments.network:
            network = Network(arguments.network, TINY if arguments.tiny else FULL)
            contest = Contest(bench, network, arguments.libraries)
        sys.stdin.read()  # the device is free
        begun = time.perf_counter()
        if bench.is_cuda:
            torch.cuda.set_stream(torch.cuda.Stream())
        if contest:
            contest.enter()
        bench.facts["enter_secs"] = time.perf_counter() - begun
        STEPS[arguments.step](bench, contest)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a broken context may make the clean-up hang


if __name__ == "__main__":
    main()
