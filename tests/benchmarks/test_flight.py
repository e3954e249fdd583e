"""The flight without a GPU: rehearsed on a driver that runs no kernel, and its page."""

import fcntl
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import device_lock, ncu
from benchmarks.gpu import report as reporting
from benchmarks.gpu.models.weights import decode, encode
from benchmarks.gpu.running import HELD_OUT, NETWORKS, Runner
from tests.cli import ROOT
from tests.gpu_compilers import needs_nvrtc
from tests.tuner.engines.relax import drivers

_EVENTS = [
    {"cat": "kernel", "name": "a", "ts": 100.0, "dur": 2.0, "args": {"grid": [4, 1, 1]}},
    {"cat": "kernel", "name": "b", "ts": 103.0, "dur": 5.0},
    {"cat": "cpu_op", "name": "c", "ts": 104.0, "dur": 9.0},
    {"cat": "kernel", "name": "b", "ts": 205.0, "dur": 7.0},
    {"cat": "kernel", "name": "a", "ts": 200.0, "dur": 4.0, "args": {"grid": [4, 1, 1]}},
]
# Runs as a pack does, which would measure candidates.
_PACK = """
import pathlib, sys
pathlib.Path(sys.argv[-1]).write_text(" ".join(sys.argv[1:-1]))
"""


def _python(*words: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env={**os.environ, **environ},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.tvm
@pytest.mark.slow("rehearses a benchmark for half a minute")
@needs_nvrtc
def test_a_flight_is_rehearsed_from_its_folder_alone(tmp_path: Path) -> None:
    """Every step has its result or its reason; a library that does not load costs itself alone."""
    flight, results = tmp_path / "flight", tmp_path / "results"
    (tmp_path / "first.pyz").write_text(_PACK)
    python = ".".join(platform.python_version_tuple()[:2])
    words = ["make", "--tiny", "--networks", "bert-layer", "--python", python]
    options = ["--pack", str(tmp_path / "first.pyz"), "--out", str(flight)]
    _python("-m", "benchmarks.gpu.flight", *words, *options)
    path = flight / "libraries" / "zz-broken.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        archive.addfile(tarfile.TarInfo("broken/bert-layer.lib/manifest.json"), io.BytesIO())
    driver = drivers.build(_made(tmp_path / "driver"))

    options = ["--device", "cpu", "--compile-seconds", "0", "--out", str(results)]
    text = _python(str(flight), "run", *options, LD_LIBRARY_PATH=str(driver))

    steps = json.loads((results / "results.json").read_text())["steps"]
    states = {name: step["status"] for name, step in steps.items()}
    assert states == {
        "self-test": "done",
        "measure-bert-layer": "done",
        "pack-first": "done",
        "compile-bert-layer": "not reached",
    }
    facts = {name: step.get("facts", {}) for name, step in steps.items()}
    assert facts["self-test"]["node_us"] > 0
    assert set(facts["measure-bert-layer"]["times_us"]) == {
        "torch graph",
        "untuned",
        "untuned, in a graph",
    }
    assert facts["measure-bert-layer"]["error"]["torch eager"] < 1e-2
    failures = facts["measure-bert-layer"]["failures"]
    assert set(failures) == {"broken"}
    assert "RequestError" in failures["broken"]
    assert set(facts["measure-bert-layer"]["kernels"]) == {"untuned", "torch graph"}
    assert (results / "first.results").read_text() == "run --minutes 3.00 --out"
    with tarfile.open(flight / "site.tar.xz") as site:
        names = site.getnames()
    assert "tvm/lib/libtvm_runtime_cuda.so" in names
    assert "tvm/lib/libtvm_compiler.so" not in names
    assert "- measure-bert-layer, broken: `tuner.errors.RequestError:" in text


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has a GPU")
def test_a_step_without_a_gpu_has_failed(tmp_path: Path) -> None:
    """Its state says so, and the page has torch's reason."""
    folder, out = _made(tmp_path / "flight"), _made(tmp_path / "out")
    described = {"networks": [], "tiny": True, "target": "cuda:sm_90", "commit": "c", "tvm": "0"}
    (folder / "flight.json").write_text(json.dumps(described))
    tarfile.open(folder / "site.tar.xz", "w:xz").close()
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")

    runner = Runner(folder, out, _made(tmp_path / "scratch"), "cuda", 60.0)
    runner.fly(compile_secs=0.0, pack_secs=0.0)

    step = runner.results["steps"]["self-test"]
    assert step["status"] == "failed"
    assert "- self-test, self-test: `" in reporting.as_markdown(runner.results)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("name", [*NETWORKS, *HELD_OUT])
def test_networks_are_the_same_in_every_process(name: str, tmp_path: Path) -> None:
    """Two exports have the same bytes, few different weights, and the inputs of the network."""
    import onnx
    from onnx import numpy_helper

    from benchmarks.gpu.models.networks import Network
    from benchmarks.gpu.models.sizes import TINY

    network = Network(name, TINY)
    for path in ("a.onnx", "b.onnx"):
        network.export(str(tmp_path / path))

    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    graph = onnx.load(tmp_path / "a.onnx").graph
    shapes = {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in graph.input
    }
    assert shapes == {name: array.shape for name, array in network.inputs().items()}
    n_distinct = [len(np.unique(numpy_helper.to_array(each))) for each in graph.initializer]
    assert sum(count > 8 for count in n_distinct) <= 2  # the angles of positions


@pytest.mark.parametrize(
    ("n_runs", "expected"),
    [
        (2, {"span_us": 10.0, "kernels": [("a", 3.0, 1.0), ("b", 6.0, 1.0)]}),
        (3, {"kernels": [("a", 3.0, 2 / 3), ("b", 6.0, 2 / 3)]}),
    ],
)
def test_a_trace_gives_the_kernels_of_a_run(n_runs: int, expected: dict[str, Any]) -> None:
    """They are in order, with medians over the runs, or by name if the runs differ."""
    from benchmarks.gpu.steps import kernels_of

    trace = kernels_of(_EVENTS, n_runs)

    kernels = [(kernel["name"], kernel["us"], kernel["n"]) for kernel in trace["kernels"]]
    assert {**trace, "kernels": kernels} == expected
    assert trace["kernels"][0]["grid"] == [4, 1, 1]


@pytest.mark.parametrize("n_bytes", [0, 3, 1 << 16, (5 << 16) + 7])
@pytest.mark.parametrize("n_levels", [1, 16, 17])
def test_encoded_weights_are_decoded(n_bytes: int, n_levels: int) -> None:
    """Every byte comes back, and chunks of few levels take a quarter."""
    rng = np.random.default_rng(0)
    levels = rng.permutation(1 << 16)[:n_levels].astype(np.uint16)
    data = levels[rng.integers(0, n_levels, n_bytes)].tobytes()[:n_bytes]

    encoded = encode(data)

    assert decode(encoded) == data
    if n_levels <= 16:
        assert len(encoded) < n_bytes // 4 + 300


def test_an_output_that_is_not_finite_has_no_finite_error() -> None:
    """The error is the worst of all outputs, as a share of the norm."""
    import torch

    from benchmarks.gpu.steps import worst_error

    ones, nans = torch.ones(4), torch.full((4,), float("nan"))
    assert worst_error([ones, 1.5 * ones], [ones, ones]) == pytest.approx(0.5)
    assert np.isnan(worst_error([ones, nans, ones], [ones, ones, ones]))


def test_the_page_is_named_by_device_and_date(tmp_path: Path) -> None:
    """It has ratios to torch's graph, errors, sums of kernels, and the reasons of failures."""

    def times(median: float) -> dict[str, Any]:
        summary = {"median": median, "low": median - 1, "high": median + 1, "n": 9}
        return {"latency": summary, "device": summary, "host": summary}

    kernel = {"name": "gemm | b", "grid": [4, 1, 1], "block": [128, 1, 1], "n": 1.0}
    kernel |= {"registers per thread": 48, "shared memory": 0}
    measured = {
        "times_us": {"torch graph": times(40.0), "untuned": times(30.0)},
        "error": {"untuned": 1.5e-3},
        "equal_replays": {"untuned": 50},
        "failures": {"tuned": "Traceback\nValueError: no\n"},
        "kernels": {"untuned": {"span_us": 31.0, "kernels": [{**kernel, "us": 2.5}] * 4}},
    }
    raced = {"times_us": {"torch graph": times(40.0), "torch.compile default": times(20.0)}}
    agreed = {"error_of_norm": 2e-4, "float16_error": 1e-4, "equal_replays": 20, "secs": 1.0}
    libraries = {"a": agreed, "b": {**agreed, "error_of_norm": 2e-2}, "c": {"error": "boom"}}
    steps = {
        "self-test": {"status": "done", "secs": 4.0, "facts": {"device": "NVIDIA H200"}},
        "measure-bert-layer": {"status": "done", "secs": 9.0, "facts": measured, "log": "a"},
        "agreement": {"status": "done", "secs": 9.0, "facts": libraries},
        "compile-bert-layer": {"status": "done", "secs": 9.0, "facts": {"compile_secs": 8.0}},
        "autotune-bert-layer": {"status": "stopped after 60 s", "secs": 60.0, "log": "b\nlast\n"},
        "race-bert-layer": {"status": "done", "secs": 9.0, "facts": raced},
    }
    results = {
        "date": "2026-11-27T14:00:00+00:00", "device": "cuda", "secs": 99.0, "steps": steps,
        "gpu_before": {"clocks.sm": "1980 MHz"}, "gpu_after": {},
        "flight": {"networks": ["bert-layer"], "target": "cuda:sm_90", "commit": "c", "tvm": "0"},
    }  # fmt: skip
    (tmp_path / "results.json").write_text(json.dumps(results))

    page = reporting.write(tmp_path / "results.json", tmp_path)

    assert page == tmp_path / "nvidia-h200-2026-11-27" / "report.md"
    for expected in (
        "# Flight of 2026-11-27T14:00:00+00:00 on NVIDIA H200",
        "| clocks.sm, before | 1980 MHz |",
        "| untuned | 30.0 | 29.0 - 31.0 | 30.0 | 0.75 | 30.0 | 1.5e-03 | 50 of 50 |",
        "| untuned | 4 | 10.0 | 31.0 |",
        "| untuned | `gemm \\| b` | 2.5 | 4 | [4, 1, 1] | [128, 1, 1] | 48 |",
        "- measure-bert-layer, tuned: `ValueError: no`",
        "in CUDA graphs; default: 8 s, max-autotune-no-cudagraphs: 0 s:",
        "| torch.compile default | 20.0 | 19.0 - 21.0 | 20.0 | 0.50 | 20.0 | - | - |",
        "- autotune-bert-layer: `last`",
    ):
        assert expected in page.read_text()
    summary = reporting.as_summary(results)
    assert summary.startswith("s: self-test 4, measure-bert-layer 9, ")
    assert "| bert-layer | untuned | 30.0 | 0.75 | 1.5e-03 |" in summary
    assert "3 libraries; failed: ['c']; error above 3 times that of float16: ['b'];" in summary
    assert "log" not in json.loads(page.with_name("report.json").read_text())["steps"]


def test_ncu_is_asked_for_the_slowest_kernels_alone(tmp_path: Path) -> None:
    """Five names in order of time, each once; a report gives what is kept of each launch."""
    kernels = [{"name": f"k_{number % 7}", "us": float(number)} for number in range(14)]

    words = ncu.command(kernels, tmp_path / "report.csv")

    assert words[words.index("--kernel-name") + 1] == "regex:^(k_6|k_5|k_4|k_3|k_2)$"
    table = (
        "==PROF== Connected\n"
        '"ID","Kernel Name","Grid Size","gpu__time_duration.sum","smsp__other",'
        '"a_issue_stalled_wait_per_issue_active.ratio","a_issue_stalled_lg_per_issue_active.ratio"\n'
        '"","","","us","%","inst","inst"\n'
        '"0","k_6","(4, 1, 1)","3.1","7","0.50","1.25"\n'
    )
    assert ncu.read(table) == [
        {
            "name": "k_6", "grid": "(4, 1, 1)", "block": "", "time, us": "3.1",
            "stalls": "lg 1.25, wait 0.50",
        }
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no table"):
        ncu.read("==ERROR== no permission\n")


def test_benchmarks_of_inductor_wait_for_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that times holds the lock, also in a function that times by another."""
    from torch._inductor.runtime import benchmarking

    monkeypatch.setenv(device_lock.LOCK, str(tmp_path / "lock"))

    class Benchmarker:
        def benchmark_gpu(self) -> bool:
            with (tmp_path / "lock").open("w") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
            return False

        def benchmark_gpu_with_cuda_graph(self) -> bool:
            return self.benchmark_gpu()

    assert hasattr(benchmarking.Benchmarker, "benchmark_gpu")
    monkeypatch.setattr(benchmarking, "InductorBenchmarker", Benchmarker)
    for name in ("Benchmarker", "TritonBenchmarker"):
        monkeypatch.delattr(benchmarking, name)
    assert not Benchmarker().benchmark_gpu()

    assert device_lock.lock_benchmarks()

    assert Benchmarker().benchmark_gpu()
    assert Benchmarker().benchmark_gpu_with_cuda_graph()
