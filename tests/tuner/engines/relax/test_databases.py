"""MetaSchedule databases of plain TVM are imported, and exported ones serve plain TVM."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tests.cli import ROOT, Cli
from tests.tuner.engines.relax.conftest import draw
from tests.tuner.networks import models
from tuner.tuning_logs.metaschedule import RECORDS, WORKLOADS

pytestmark = pytest.mark.slow("starts plain TVM again and again")

_PLAIN = Path(__file__).parent / "plain_tvm.py"
_SHAPE = (8, 64)
_OTHER = json.dumps({"kind": "llvm", "mcpu": "znver3", "num-cores": 8})


def plain(*words: str) -> str:
    """Run plain TVM, and return its output."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(_PLAIN), *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two dense layers, which plain TVM splits like the tuner."""
    weights = {"w1": draw(64, 32), "b1": draw(32), "w2": draw(32, 16)}
    nodes = [
        helper.make_node("MatMul", ["data", "w1"], ["a"]),
        helper.make_node("Add", ["a", "b1"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "w2"], ["y"]),
    ]
    path = tmp_path_factory.mktemp("model") / "dense.onnx"
    onnx.save(models.model(nodes, {"data": _SHAPE}, {"y": (8, 16)}, weights), path)
    return str(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, model: str) -> Path:
    """A database of plain TVM with two workloads of three records each, one of which ran."""
    folder = tmp_path_factory.mktemp("plain")
    plain("make", str(folder), model, "3")
    return folder


@pytest.fixture
def database(tmp_path: Path, made: Path) -> Path:
    """A copy of that database."""
    return shutil.copytree(made, tmp_path / "plain")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command line, with an empty database."""
    folder = tmp_path / "shell"
    folder.mkdir()
    return Cli(folder)


def imported(cli: Cli, path: Path, *options: str) -> dict[str, Any]:
    """Import a database; return the report of the import."""
    answer = cli("records", "import", str(path), "--json", *options)
    assert answer.status == 0, answer.err
    return answer.json


def test_records_of_plain_tvm_are_verified_and_exported(
    cli: Cli, database: Path, model: str
) -> None:
    """Imported records are the best only once verified; plain compile_relax hits the export."""
    first, again = imported(cli, database), imported(cli, database / RECORDS)
    before = cli("records", "best", "--json").json["records"]
    verified = cli("records", "verify", "--json")
    assert verified.status == 0, verified.err
    best = cli("records", "best", "--json").json["records"]
    exported = cli("records", "export", "--format", "metaschedule", "out", "--top", "1", "--json")
    back = imported(cli, cli.folder / "out")
    compiled = json.loads(plain("compile", str(cli.folder / "out"), model))

    assert (first["format"], first["added"], first["known"]) == ("metaschedule", 2, 2)
    assert first["skipped"] == [{"reason": "it was never measured", "lines": 2, "first_line": 2}]
    assert (again["added"], again["known"]) == (0, 4)
    assert before == []
    assert verified.json["verified"] == len(best) == 2
    assert exported.json["records"] == 2
    assert (back["added"], back["known"], back["foreign"]) == (0, 2, 0)
    assert len(compiled["hits"]) == 2
    assert all(compiled["hits"].values())
    expected = onnxruntime.InferenceSession(model).run(
        None, {"data": np.random.default_rng(0).standard_normal(_SHAPE).astype("float32")}
    )[0]
    np.testing.assert_allclose(compiled["output"], expected, rtol=1e-3, atol=1e-3)


def test_exported_records_serve_plain_tvm(cli: Cli, model: str) -> None:
    """Workloads whose weights a schedule may pack are exported in both forms."""
    options = ("--trials", "4", "--trials-per-round", "2", "--cost-model", "random")
    assert cli("tune", model, *options).status == 0

    exported = cli("records", "export", "--format", "metaschedule", "out")
    compiled = json.loads(plain("compile", str(cli.folder / "out"), model))
    back = imported(cli, cli.folder / "out")

    assert exported.status == 0, exported.err
    assert "of 2 workloads: it is there without packed weights too" in exported.out
    assert len(compiled["hits"]) == 2
    assert all(compiled["hits"].values())
    assert back["known"] == back["added"] == compiled["records"] // 2


def test_a_database_of_another_target_needs_the_foreign_option(cli: Cli, database: Path) -> None:
    """Both targets are named, and imported records are counted as foreign."""
    refused = cli("records", "import", str(database), "--target", _OTHER)
    listed = cli("records", "list", "--json").json["records"]
    text = (database / RECORDS).read_text()
    mcpu = json.loads(text.splitlines()[0])[1][2]["mcpu"]
    (database / RECORDS).write_text(text.replace(f'"{mcpu}"', '"znver3"'))
    foreign = imported(cli, database, "--foreign")

    assert refused.status == 2
    assert f'"mcpu":"{mcpu}"' in refused.complaint
    assert '"mcpu":"znver3"' in refused.complaint
    assert refused.complaint.endswith("nothing was imported")
    assert listed == []
    assert (foreign["added"], foreign["foreign"]) == (2, 4)


def test_unusable_lines_are_left_out_with_a_reason(cli: Cli, database: Path) -> None:
    """Damaged IR, unknown workloads, foreign traces and torn ends do not stop the import."""
    ran, *_, other = (database / RECORDS).read_text().splitlines()[:4]
    workloads = (database / WORKLOADS).read_text().splitlines()
    damaged = json.dumps(["1", workloads[0][30:90]])
    (database / WORKLOADS).write_text("\n".join([workloads[0], damaged]) + "\n")
    number, (trace, *rest) = json.loads(ran)
    swapped = json.dumps([number, [json.loads(other)[1][0], *rest]])
    bogus = json.dumps([number, [[[["Bogus", [], [], []]], []], *rest]])
    strange = json.dumps([number, [trace, rest[0], {"kind": "opencl"}, []]])
    lines = [b"\xff\xfe", other.encode(), *(each.encode() for each in (swapped, bogus, strange))]
    unknown = ran.replace("[0,", "[9,", 1).encode()
    (database / RECORDS).write_bytes(b"\n".join([*lines, unknown, ran.encode(), ran.encode()[:90]]))

    report = imported(cli, database)

    reasons = [each["reason"] for each in sorted(report["skipped"], key=lambda s: s["first_line"])]
    assert (report["added"], report["torn"]) == (1, 1)
    assert reasons[0].startswith("it is not UTF-8")
    assert reasons[1].startswith("workload 1 cannot be used: its IR")
    assert reasons[2].startswith("the trace cannot be replayed: ")
    assert "Bogus" in reasons[3]
    assert "opencl" in reasons[4]
    assert reasons[5] == "workload 9 is not in the database: it has 2"
