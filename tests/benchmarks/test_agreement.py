"""Libraries of the corpus for the flight: their weights, what they must compute, and the step."""

import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.gpu import corpus_libraries
from benchmarks.gpu.agreement import Drawn, positions_of
from benchmarks.gpu.corpus_libraries import UnusableError
from benchmarks.gpu.running import unpack
from tests.cli import ROOT
from tests.gpu_compilers import needs_nvrtc
from tests.tuner.engines.relax import drivers

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]


def _product(weight: np.ndarray, kind: str = "Relu") -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node(kind, ["m"], ["y"]),
    ]
    shapes = {"x": [4, weight.shape[0]], "y": [4, weight.shape[1]]}
    given, output = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    )
    graph = helper.make_graph(nodes, "g", [given], [output], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])


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


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_weights_repeat_in_any_order_of_axes(axes: tuple[int, int, int]) -> None:
    """So a library compresses whatever layout its kernels read; most rows differ."""
    spread = corpus_libraries.spread((64, 48, 36), 3)
    rows = spread.transpose(axes).reshape(-1, spread.shape[axes[2]])

    assert len(np.unique(spread)) == 8
    assert len(np.unique(rows, axis=0)) > len(rows) / 2
    codes = np.searchsorted(np.unique(spread), rows).astype(np.uint8)
    assert len(lzma.compress(codes.tobytes())) < codes.size / 8


def test_large_weights_alone_are_replaced() -> None:
    """They keep their deviation; tables that no product reads keep their values."""
    weight = np.random.default_rng(0).normal(0, 3, (64, 48)).astype(np.float32)
    model = _product(weight)
    table = numpy_helper.from_array(weight + 1, "table")
    model.graph.initializer.append(table)

    replaced, kept = corpus_libraries._with_levels(model).graph.initializer

    values = numpy_helper.to_array(replaced)
    assert len(np.unique(values)) == 8
    assert values.std() == pytest.approx(3, rel=0.1)
    assert np.array_equal(
        numpy_helper.to_array(kept), (weight + 1).astype(np.float16).astype(np.float32)
    )


def test_weights_of_convolutions_can_keep_the_variance() -> None:
    """So a network whose activations would vanish in float16 shows something."""
    weight = np.random.default_rng(0).normal(0, 1e-4, (64, 32, 3, 3)).astype(np.float32)
    shapes = {"x": [1, 32, 8, 8], "y": [1, 64, 6, 6]}
    given, output = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    )
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    graph = helper.make_graph(
        [node], "g", [given], [output], [numpy_helper.from_array(weight, "w")]
    )

    model = corpus_libraries._with_levels(helper.make_model(graph), keeps_variance=True)

    replaced = numpy_helper.to_array(model.graph.initializer[0])
    assert replaced.std() == pytest.approx((2 / (32 * 9)) ** 0.5, rel=0.1)


def test_expected_outputs_have_the_error_of_float16(tmp_path: Path) -> None:
    """It is that of rounding every tensor, about 2 ** -12 for one product."""
    weight = np.random.default_rng(0).normal(0, 1, (64, 48)).astype(np.float16).astype(np.float32)

    error = corpus_libraries._write_expected(
        _product(weight), {"x": Drawn((4, 64), "float16", 2)}, tmp_path
    )

    assert 1e-5 < error < 1e-3
    with np.load(tmp_path / "expected.npz") as expected:
        x = Drawn((4, 64), "float16", 2).array("x").astype(np.float32)
        assert np.allclose(expected["0"], np.maximum(x @ weight, 0).ravel(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("scale", "kind", "reason"),
    [(1e5, "Relu", "not finite in float16"), (0.0, "Relu", "no output depends on the inputs")],
)
def test_networks_that_show_nothing_are_left_out(
    scale: float, kind: str, reason: str, tmp_path: Path
) -> None:
    """A library that computed anything would agree, or none could."""
    weight = np.full((64, 48), scale, np.float32)
    with pytest.raises(UnusableError, match=reason):
        corpus_libraries._write_expected(
            _product(weight, kind), {"x": Drawn((4, 64), "float16", 2)}, tmp_path
        )


def test_positions_are_in_the_output_with_its_end() -> None:
    """A small output is compared whole."""
    assert positions_of(5).tolist() == [0, 1, 2, 3, 4]
    drawn = positions_of(1_000_000)
    assert drawn.max() == drawn[-1] == 999_999
    assert len(np.unique(drawn)) > 4000
