"""Libraries of the corpus for the flight: their weights, what they must compute, and the step."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import corpus_libraries
from benchmarks.gpu.running import unpack
from tests.cli import ROOT
from tests.gpu_compilers import needs_nvrtc
from tests.tuner.engines.relax import drivers

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]


@pytest.mark.slow("builds a library for a benchmark")
@needs_nvrtc
def test_a_library_of_the_corpus_runs_in_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is built once, runs again with equal bytes, and one that is broken costs itself alone."""
    out, corpus = tmp_path / "agree", tmp_path / "corpus"
    words = ["--only", "espcn", "--out", str(out), "--corpus", str(corpus)]
    monkeypatch.setattr(sys, "argv", ["corpus_libraries", *words])
    corpus_libraries.main()
    line = json.loads(capsys.readouterr().out)
    corpus_libraries.main()
    assert capsys.readouterr().out == ""
    assert line["bytes"] == (out / "espcn.tar.xz").stat().st_size
    unpack(out / "espcn.tar.xz", tmp_path / "unpacked" / "espcn")
    (tmp_path / "unpacked" / "broken").mkdir()

    driver = tmp_path / "driver"
    driver.mkdir()
    results = tmp_path / "results.json"
    words = ["-m", "benchmarks.gpu.agreement", str(tmp_path / "unpacked"), str(results)]
    environ = {**os.environ, "LD_LIBRARY_PATH": str(drivers.build(driver))}
    command = [sys.executable, *words, "--device", "cpu"]
    subprocess.run(command, cwd=ROOT, env=environ, check=True, timeout=300)

    facts = json.loads(results.read_text())
    assert facts["espcn"]["equal_replays"] == 20
    assert facts["espcn"]["float16_error"] == line["float16_error"]
    assert "FileNotFoundError" in facts["broken"]["error"]
