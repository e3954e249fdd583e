"""Packs end to end: made, run on a driver whose kernels do as planned, imported, built from."""

import errno
import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.gpu_compilers import needs_nvrtc
from tests.tuner.engines.relax import drivers
from tests.tuner.packs.conftest import N_CANDIDATES, Bench, make
from tests.tuner.packs.plans import Plan
from tuner.engines.relax.triton.compilation import compiler
from tuner.packs import registry

pytestmark = [
    pytest.mark.in_ci,
    pytest.mark.slow("40 s: packs are compiled, written and run"),
    pytest.mark.tvm,
    pytest.mark.filterwarnings("ignore:::tvm"),
    pytest.mark.skipif(not compiler.is_installed(), reason="Triton is not installed"),
]

_MAKE = ("pack", "make", "zoo:mlp", "--candidates", str(N_CANDIDATES), "--json")


@needs_nvrtc
def test_results_become_records_that_a_build_uses(bench: Bench, results: Path) -> None:
    """A build where the GPU is not uses them; importing them again changes nothing."""
    imported = bench.import_(results)
    again = bench.import_(results)
    built = bench.cli("build", "zoo:mlp", "--target", "cuda:sm_90", "-o", "mlp.lib", "--json")

    assert (imported.status, imported.json["n_added"]) == (0, N_CANDIDATES), imported.err
    assert imported.json["device"] == "NVIDIA Test"
    assert (again.json["n_added"], again.json["n_known"]) == (0, N_CANDIDATES)
    assert bench.cli.count_records() == N_CANDIDATES
    assert built.status == 0, built.err
    tuned = [each for each in built.json["subgraphs"] if each["record"] is not None]
    assert built.json["tuned"] == len(tuned) == len(bench.index["workloads"])
    assert all(each["variant"].startswith("triton-gemm") for each in tuned)
    status = bench.cli("pack", "status", "--json").json["packs"]
    assert [each["imported"] for each in status] == [{"NVIDIA Test": N_CANDIDATES}]
    assert datetime.fromisoformat(status[0]["made"])
    assert re.search(r" \d+ (s|min) ago ", bench.cli("pack", "status").out)


@needs_nvrtc
def test_device_has_the_fingerprint_that_a_tuner_on_its_machine_makes(
    bench: Bench, results: Path, tmp_path: Path
) -> None:
    """The GPU's own machine finds the records without a pack."""
    code = "from tuner.engines.relax import worker; import json; print(json.dumps(dict("
    code += "worker.describe_target('cuda:sm_90').device)))"
    environ = bench.cli.environ(LD_LIBRARY_PATH=str(drivers.build(tmp_path)))
    described = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )

    assert bench.import_(results).json["missing"] == []

    with sqlite3.connect(bench.cli.data_dir / "tuner.db") as connection:
        devices = [
            json.loads(device) for (device,) in connection.execute("SELECT device FROM target")
        ]
    assert json.loads(described.stdout.splitlines()[-1]) in devices


def test_samples_are_seconds_of_one_launch(bench: Bench, results: Path) -> None:
    """The driver takes ten microseconds for each kernel of a candidate."""
    n_kernels = {
        (workload["workload"], each["name"]): len(each["kernels"])
        for workload in bench.index["workloads"]
        for each in workload["candidates"]
    }
    timed = [row for row in bench.rows(results) if "run_secs" in row]

    assert len(timed) == N_CANDIDATES
    for row in timed:
        secs = 1e-5 * n_kernels[row["workload"], row["candidate"]]
        assert row["run_secs"] == pytest.approx([secs] * 5, rel=1e-5)
        assert row["conditions"]["sm_mhz"] == 1755


def test_a_candidate_that_fails_costs_itself_alone(bench: Bench, tmp_path: Path) -> None:
    """One writes nothing, one crashes its process, one breaks the GPU, one hangs."""
    failing = bench.single[:4]
    for candidate, what in zip(failing, ("nothing", "crash", "fault", "hang"), strict=True):
        bench.plan.does(candidate, what)
    out = tmp_path / "results"

    status, text = bench.run(out, "--timeout", "8")

    assert status == 0, text
    assert f"{N_CANDIDATES - 4} right, 1 wrong, 3 failed" in text
    kinds = {
        (row["workload"], row["candidate"]): row.get("error_kind")
        for row in bench.rows(out)
        if "candidate" in row and "started" not in row
    }
    assert [kinds[each["workload"], each["name"]] for each in failing] == [
        "wrong_result", "run_error", "run_error", "run_timeout"
    ]  # fmt: skip
    imported = bench.import_(out).json
    assert (imported["n_wrong"], imported["n_failed"], imported["n_added"]) == (1, 3, N_CANDIDATES)
    with sqlite3.connect(bench.cli.data_dir / "tuner.db") as connection:
        verified = connection.execute("SELECT sum(verified) FROM measure_record").fetchone()
    assert verified == (N_CANDIDATES - 4,)


def test_killed_run_goes_on(bench: Bench, results: Path, tmp_path: Path) -> None:
    """A candidate with a result is not measured again, and nothing stays behind on the GPU."""
    out, hanging = tmp_path / "results", bench.single[0]
    bench.plan.does(hanging, "hang")
    process = bench.start(out, "--no-compile")
    started = {"workload": hanging["workload"], "candidate": hanging["name"], "started": True}
    while not (out.is_file() and started in bench.rows(out)):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with out.open("ab") as stream:
        stream.write(b"torn")
    n_before = len(bench.rows(out))

    status, text = replace(bench, plan=Plan(results.with_name("plan"))).run(out)

    assert status == 0, text
    assert f"{N_CANDIDATES} right" in text
    rows = bench.rows(out)[n_before:]
    names = [row["candidate"] for row in rows if "candidate" in row and "started" in row]
    assert len(names) == N_CANDIDATES - bench.candidates.index(hanging)
    assert bench.import_(out).json["n_added"] == N_CANDIDATES


def _prefer_another(bench: Bench) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make one candidate of a workload the fastest alone, and another one in the network."""
    workload = bench.single[0]["workload"]
    alone, inside = [each for each in bench.single if each["workload"] == workload][-2:]
    bench.plan.takes(alone, 5.0, 7.0)
    bench.plan.takes(inside, 5.5, 4.0)
    return alone, inside


@needs_nvrtc
def test_finals_in_the_network_choose_the_best_record(bench: Bench, tmp_path: Path) -> None:
    """The candidate that saves most there wins, with what it saves a call as its latency."""
    _, inside = _prefer_another(bench)
    out = tmp_path / "results"

    status, text = bench.run(out)
    imported = bench.import_(out).json
    again = bench.import_(out).json

    assert status == 0, text
    rows = [row for row in bench.rows(out) if "network" in row]
    (race,) = [row for row in rows if row.get("workload") == inside["workload"] and "race" in row]
    assert race["chosen"] == inside["name"]
    (times,) = imported["networks"]
    n_calls = sum(name == inside["workload"] for name, _ in bench.index["networks"][0]["calls"])
    n_kernels = times["n_kernels"]
    assert [1e6 * times[name] for name in ("before", "after", "estimate")] == pytest.approx(
        [10 * n_kernels, 10 * n_kernels - 6 * n_calls, 10 * n_kernels - 4.5 * n_calls], rel=1e-4
    )
    assert times["is_stable"] is True
    assert times["difference"] == 0.0
    assert (imported["n_by_finals"], again["networks"]) == (1, imported["networks"])
    with sqlite3.connect(bench.cli.data_dir / "tuner.db") as connection:
        best = dict(
            connection.execute("""
            SELECT measure_record.trace, best_record.latency FROM best_record
            JOIN measure_record ON measure_record.id = best_record.record_id""")
        )
    (latency,) = [each for trace, each in best.items() if f'"{inside["name"]}"' in trace]
    # The fastest alone takes 5 us, and 3 us more than the winner in the network.
    assert latency == pytest.approx(2e-6, rel=1e-3)


@needs_nvrtc
@pytest.mark.parametrize(
    "what",
    [
        "crash",
        pytest.param(
            "hang", marks=pytest.mark.slow("25 s; candidates that hang are tested always")
        ),
    ],
)
def test_final_that_fails_costs_itself_alone(bench: Bench, tmp_path: Path, what: str) -> None:
    """Candidates keep their results, and the reason is told."""
    bench.plan.graphs(what)
    out = tmp_path / "results"

    status, text = bench.run(out, "--timeout", "8")

    assert status == 0, text
    assert f"{N_CANDIDATES} right, 0 wrong, 0 failed" in text
    problems = [row for row in bench.rows(out) if "problem" in row]
    races = [row for row in problems if "workload" in row]
    assert len(problems) == len(races) + 1
    assert bench.import_(out).json["networks"] == []


@needs_nvrtc
def test_torn_finals_go_on(bench: Bench, tmp_path: Path) -> None:
    """A race with a result is not run again."""
    out = tmp_path / "results"
    assert bench.run(out)[0] == 0
    lines = out.read_bytes().splitlines(keepends=True)
    (last,) = [at for at, line in enumerate(lines) if b'"after"' in line]
    races = [at for at, line in enumerate(lines) if b'"race"' in line]
    out.write_bytes(b"".join(lines[: races[-1]]) + lines[last][:40])

    status, text = bench.run(out)

    assert status == 0, text
    rows = bench.rows(out)
    named = [row["workload"] for row in rows if "race" in row]
    assert len(named) == len(set(named)) == len(races)
    assert sum("after" in row for row in rows) == 1


def test_kernels_run_beside_each_other_as_in_a_library(tmp_path: Path) -> None:
    """Two products that need nothing of each other take the time of one."""
    nodes = [helper.make_node("MatMul", [name, f"w{name}"], [f"r{name}"]) for name in "ab"]
    inputs, outputs = (
        [
            helper.make_tensor_value_info(f"{head}{name}", TensorProto.FLOAT, (4, 64))
            for name in "ab"
        ]
        for head in ("", "r")
    )
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.random((64, 64), "float32"), f"w{name}") for name in "ab"
    ]
    graph = helper.make_graph(nodes, "test", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "branches.onnx")
    bench = make(tmp_path, str(tmp_path / "branches.onnx"), 2)

    status, text = bench.run(tmp_path / "results")

    assert status == 0, text
    (row,) = [row for row in bench.rows(tmp_path / "results") if "after" in row]
    assert row["has_branches"] is True
    assert row["before"] == pytest.approx([1e-5] * len(row["before"]), rel=1e-4)
    assert row["estimate"] == pytest.approx(2e-5, rel=1e-4)


def _more(bench: Bench, out: Path) -> list[dict[str, Any]]:
    """Return the results of candidates that are not in the pack."""
    packed = {(each["workload"], each["name"]) for each in bench.candidates}
    return [
        row
        for row in (bench.rows(out) if out.is_file() else ())
        if "run_secs" in row and (row["workload"], row["candidate"]) not in packed
    ]


def test_machine_of_the_gpu_compiles_more(bench: Bench, tmp_path: Path) -> None:
    """Their records are like others, and a killed run goes on with what was compiled."""
    out = tmp_path / "results"
    process = bench.start(out)
    while len(_more(bench, out)) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.kill()
    process.communicate()

    status, text = bench.run(out)

    assert status == 0, text
    more = _more(bench, out)
    imported = bench.import_(out).json
    assert (imported["n_added"], imported["n_left"]) == (N_CANDIDATES + len(more), 0)
    assert bench.cli.count_records() == N_CANDIDATES + len(more)
    with sqlite3.connect(bench.cli.data_dir / "tuner.db") as connection:
        traces = [trace for (trace,) in connection.execute("SELECT trace FROM measure_record")]
    assert all(any(f'"{row["candidate"]}"' in trace for trace in traces) for row in more)


def test_nothing_is_compiled_next_to_candidates_that_are_all_wrong(
    bench: Bench, tmp_path: Path
) -> None:
    """The run ends, long before its minutes are over."""
    for candidate in bench.candidates:
        bench.plan.does(candidate, "nothing")

    process = bench.start(tmp_path / "results")
    text, _ = process.communicate(timeout=150)

    assert process.returncode == 0, text
    assert f" 0 right, {N_CANDIDATES} wrong" in text


def test_other_version_of_triton_compiles_nothing(bench: Bench, tmp_path: Path) -> None:
    """The run measures what is in the pack, and tells why."""
    other = tmp_path / "other.pyz"
    with zipfile.ZipFile(bench.pack) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "pack.json":
                content = json.dumps({**json.loads(content), "triton": "0.1"}).encode()
            new.writestr(name, content)

    process = replace(bench, pack=other).start(tmp_path / "results")
    text, _ = process.communicate(timeout=120)

    assert process.returncode == 0, text
    assert "nothing was compiled here: Triton 0.1 compiles more candidates" in text


def test_torn_results_count_up_to_the_tear(bench: Bench, results: Path, tmp_path: Path) -> None:
    """The rest can be imported later."""
    torn = tmp_path / "torn"
    content = results.read_bytes()
    torn.write_bytes(content[: content.rindex(b'"run_secs"')])

    first, second = bench.import_(torn).json, bench.import_(results).json

    assert (first["n_added"], first["n_left"]) == (N_CANDIDATES - 1, 1)
    assert first["n_torn_bytes"] > 0
    assert (second["n_added"], second["n_left"]) == (1, 0)


def test_changed_results_count_up_to_the_change(
    bench: Bench, results: Path, tmp_path: Path
) -> None:
    """A faster time than was measured breaks the code of its line."""
    changed = tmp_path / "changed"
    head, middle, tail = results.read_text().partition('"run_secs":[')
    changed.write_text(f"{head}{middle}9{tail}")

    assert bench.import_(changed).json["n_added"] == 0
    assert bench.cli.count_records() == 0


def _of_other_key(bench: Bench, rows: list[dict[str, Any]], path: Path) -> None:
    bench.write(path, rows, key="0" * 64)


def _of_other_pack(bench: Bench, rows: list[dict[str, Any]], path: Path) -> None:
    bench.write(path, [{**rows[0], "pack": "0" * 12}, *rows[1:]])


def _of_other_device(bench: Bench, rows: list[dict[str, Any]], path: Path) -> None:
    device = {**rows[0]["device"], "capability": "8.0", "name": "NVIDIA Other"}
    bench.write(path, [{**rows[0], "device": device}, *rows[1:]])


def _nothing(_bench: Bench, _rows: list[dict[str, Any]], path: Path) -> None:
    path.write_text("{}\n")


def _of_two_runs(bench: Bench, rows: list[dict[str, Any]], path: Path) -> None:
    bench.write(path, [*rows, *rows])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_of_two_runs, "has the results of several runs"),
        (_of_other_key, "do not have the key of the pack"),
        (_of_other_pack, "pack '000000000000' was not made with the data directory"),
        (_of_other_device, "compute capability 9.0, and NVIDIA Other has 8.0"),
        (_nothing, "pack '' was not made"),
    ],
)
def test_results_of_elsewhere_are_refused(
    bench: Bench,
    results: Path,
    tmp_path: Path,
    make: Callable[[Bench, list[dict[str, Any]], Path], None],
    says: str,
) -> None:
    """Nothing is stored."""
    path = tmp_path / "results"
    make(bench, bench.rows(results), path)

    refused = bench.import_(path)

    assert refused.status == 2
    assert says in refused.complaint
    assert bench.cli.count_records() == 0


def test_unreadable_result_is_a_failed_record(bench: Bench, results: Path, tmp_path: Path) -> None:
    """A time that cannot be true does not count."""
    rows = bench.rows(results)
    for row in rows:
        if "run_secs" in row:
            row["run_secs"] = [-1.0]
    path = tmp_path / "results"
    bench.write(path, rows)

    assert bench.import_(path).json["n_failed"] == N_CANDIDATES


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"TUNER_TEST_CAPABILITY": "8"}, "compute capability 9.0, and NVIDIA Test has 8.0"),
        ({"TUNER_TEST_OTHER_GPU": "1"}, "name another file"),
        ({"TUNER_TEST_NO_GPU": "1"}, "cuInit"),
    ],
)
def test_wrong_gpu_is_refused_where_it_is(
    bench: Bench, results: Path, tmp_path: Path, environ: dict[str, str], says: str
) -> None:
    """Results are of one GPU, which the binaries run on."""
    out = Path(shutil.copy(results, tmp_path / "results"))
    out.write_bytes(out.read_bytes().split(b"\n")[0] + b"\n")

    status, text = bench.run(out, **environ)

    assert status == 1
    assert says in text


def test_file_with_something_else_is_not_overwritten(bench: Bench, tmp_path: Path) -> None:
    """A pack names another file."""
    out = tmp_path / "notes"
    out.write_text("mine\n")

    status, text = bench.run(out)

    assert (status, out.read_text()) == (1, "mine\n")
    assert "has no results of this pack" in text


def test_next_pack_has_other_candidates(bench: Bench, results: Path, tmp_path: Path) -> None:
    """Those of a pack without results are left out, and so are those that were measured."""
    content = results.read_bytes()
    torn = tmp_path / "torn"
    torn.write_bytes(content[: content.rindex(b'"run_secs"')])
    imported = bench.import_(torn).json
    assert (imported["n_added"], imported["n_left"]) == (N_CANDIDATES - 1, 1)

    made = bench.cli(*_MAKE, "--candidates", "1", "-o", "open.pyz")

    assert made.status == 0, made.err
    chosen, names = (
        {(each["workload"], each["name"]) for each in pack.candidates}
        for pack in (bench, replace(bench, pack=bench.cli.folder / "open.pyz"))
    )
    # Those that were the fastest, and in a library now, take part again.
    assert len(names - chosen) == 1
    again = bench.cli(*_MAKE, "-o", "open.pyz")
    assert (again.status, "open.pyz exists" in again.complaint) == (2, True)
    left = bench.cli("pack", "status", "--forget", made.json["pack"], "--json").json["packs"]
    assert [each["file"] for each in left] == ["made.pyz"]


def test_candidates_that_an_ended_offer_did_not_measure_are_free(bench: Bench) -> None:
    """The next pack has them again."""
    assert bench.cli("pack", "offer", str(bench.pack)).status == 0
    with closing(sqlite3.connect(bench.cli.data_dir / "tuner.db")) as connection, connection:
        connection.execute("UPDATE offered_pack SET ended = created")

    answer = bench.cli(*_MAKE, "-o", "next.pyz")

    assert answer.status == 0, answer.err
    names = [
        {(each["workload"], each["name"]) for each in pack.candidates}
        for pack in (bench, replace(bench, pack=bench.cli.folder / "next.pyz"))
    ]
    assert names[0] == names[1]


def test_runner_needs_numpy_alone(made: Bench) -> None:
    """The package ml_dtypes may be there; every module of the tuner is in the pack."""
    code = """
import sys
import numpy
before = set(sys.modules)
sys.path.insert(0, sys.argv[1])
import tuner.packs.runner.command
for name in set(sys.modules) - before:
    top, file = name.partition(".")[0], getattr(sys.modules[name], "__file__", None)
    is_own = file and file.startswith(sys.argv[1])
    if file and not is_own and top not in {*sys.stdlib_module_names, "numpy", "ml_dtypes"}:
        print(top)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(made.pack)], capture_output=True, text=True, check=True
    )

    assert set(done.stdout.split()) <= {"_ml_dtypes_ext"}


def test_pack_without_a_file_is_unknown(bench: Bench) -> None:
    """Its candidates count as measured in an open pack otherwise, and no other pack has them."""
    (pack,) = registry.load_all(bench.cli.data_dir)

    with suppress(OSError), registry.forgotten_on_error(bench.cli.data_dir, "0" * 12):
        registry.store(bench.cli.data_dir, replace(pack, pack="0" * 12))
        raise OSError(errno.ENOSPC, "no space left")

    assert list(registry.load_all(bench.cli.data_dir)) == [pack]


def test_key_is_for_its_owner_alone(bench: Bench) -> None:
    """Others could make up results."""
    (pack,) = registry.load_all(bench.cli.data_dir)
    path = bench.cli.data_dir / "packs" / f"{pack.pack}.json"

    assert {path.stat().st_mode & 0o777, bench.pack.stat().st_mode & 0o777} == {0o600}
