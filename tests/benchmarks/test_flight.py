"""The flight without a GPU: rehearsed on a driver that runs no kernel, and its page."""

import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu import report as reporting
from benchmarks.gpu.models.weights import decode, encode
from benchmarks.gpu.running import Runner
from tests.cli import ROOT
from tests.gpu_compilers import needs_nvrtc
from tests.tuner.engines.relax import drivers

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
