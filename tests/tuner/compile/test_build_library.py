"""Libraries built from records with the relax engine."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select

import tuner
from records import bests
from records.logs import other_targets
from records.models import BestRecord, Target
from tests.cli import ROOT, Answer, Cli
from tests.engines.toy_network import open_sessions
from tests.tuner.networks.models import LIGHT, difference, run
from tuner.errors import RequestError
from tuner.library import manifest

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.filterwarnings("ignore:::tvm"),
    pytest.mark.slow("tunes and builds with the real engine for a minute"),
]

TRIALS = "8"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """A perceptron with a few trials on every task, built into ``mlp.lib``."""
    cli = Cli(tmp_path_factory.mktemp("tuned"))
    options = ("--trials", TRIALS, "--trials-per-round", "2", "--cost-model", "random")
    assert cli("tune", "zoo:mlp", *options).status == 0
    answer = cli("build", "zoo:mlp", "-o", "mlp.lib", "--strict", "--json")
    assert answer.status == 0, answer.err
    (cli.folder / "built.json").write_text(answer.out)
    return cli


@pytest.fixture
def library(tuned: Cli, tmp_path: Path) -> Path:
    """A copy of the library, for tests that alter it."""
    return Path(shutil.copytree(tuned.folder / "mlp.lib", tmp_path / "copy.lib"))


def feeds(seed: int = 0) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """Return an image."""
    return {"data": np.random.default_rng(seed).random((1, 1, 28, 28), dtype=np.float32)}


def test_coverage_names_the_record_of_every_subgraph(tuned: Cli) -> None:
    """Each subgraph is built from the best record of its task, whose latency adds up."""
    built = json.loads((tuned.folder / "built.json").read_text())

    with open_sessions(tuned.url)() as session:
        best = {row.record_id: row.latency for row in session.scalars(select(BestRecord))}
        for entry in built["subgraphs"]:
            engine = "tuner.engines.relax.worker"
            task_id = other_targets.task_of_workload(session, entry["workload"], engine)
            assert task_id is not None
            assert bests.best_records(session, [task_id])[task_id].record_id == entry["record"]
    assert built["tuned"] == len(built["subgraphs"]) == 4
    assert built["fallbacks"] == 0
    assert {entry["record"] for entry in built["subgraphs"]} == set(best)
    assert built["estimated_secs"] == pytest.approx(
        sum(best[entry["record"]] * entry["n_calls"] for entry in built["subgraphs"])
    )


def test_bench_reads_the_clock_of_the_records(tuned: Cli) -> None:
    """The library names the clock that its latencies refer to, and bench times it again."""
    described = manifest.read(tuned.folder / "mlp.lib")
    with open_sessions(tuned.url)() as session:
        reference = session.scalars(select(Target.clock_secs)).one()

    benched = tuned("bench", "mlp.lib", "--turns", "2", "--json").json

    assert described.clock_secs == reference
    assert described.clock_kernel
    assert 0.1 < benched["clock"] < 10
    assert benched["clock"] != 1.0
    estimate = benched["estimated_secs"] / benched["clock"]
    assert benched["estimate_error"] == pytest.approx(estimate / benched["library_secs"] - 1)


def test_loaded_library_computes_what_the_model_does(tuned: Cli) -> None:
    """The callable takes arrays by name and agrees with ONNX Runtime on any input."""
    network = tuner.load(tuned.folder / "mlp.lib")
    (model,) = (tuned.data_dir / "models").glob("*.onnx")

    for seed in range(3):
        outputs = network(feeds(seed))
        (expected,) = run(model.read_bytes(), feeds(seed))
        ((name, actual),) = outputs.items()
        assert name == network.outputs[0]
        assert difference(actual, expected) < 1e-4
    np.testing.assert_array_equal(network(data=feeds(1)["data"])[name], network(feeds(1))[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": np.zeros((1, 28, 28), "float32")}, r"must have shape \(1, 1, 28, 28\).*got"),
        ({"data": np.zeros((2, 1, 28, 28), "float32")}, r"got \(2, 1, 28, 28\)"),
        ({"data": np.zeros((1, 1, 28, 28), "float64")}, "dtype float32, .*float64"),
        ({"image": np.zeros(1, "float32")}, "unknown input 'image'; inputs are data"),
    ],
)
def test_wrong_input_of_a_library_is_refused(
    tuned: Cli, change: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]], message: str
) -> None:
    """A wrong shape, dtype or name is refused before anything runs."""
    network = tuner.load(tuned.folder / "mlp.lib")

    with pytest.raises(ValueError, match=message):
        network({**feeds(), **change})


def test_missing_input_of_a_library_is_named(tuned: Cli) -> None:
    """The error names the missing input and its shape."""
    with pytest.raises(ValueError, match=r"input 'data' of shape \(1, 1, 28, 28\).*is missing"):
        tuner.load(tuned.folder / "mlp.lib")()


def test_input_that_is_not_an_array_is_refused(tuned: Cli) -> None:
    """A list is refused like an array of another shape."""
    with pytest.raises((ValueError, TypeError)):
        tuner.load(tuned.folder / "mlp.lib")(data=[1.0, 2.0])  # type: ignore[arg-type]


def test_strided_input_is_taken(tuned: Cli) -> None:
    """An array that is not contiguous gives the same output."""
    network = tuner.load(tuned.folder / "mlp.lib")
    data = feeds()["data"]
    strided = np.ascontiguousarray(data.transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0)
    assert not strided.flags.c_contiguous

    (expected,), (actual,) = network(data=data).values(), network(data=strided).values()

    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("damage", ["altered", "truncated", "missing"])
def test_damaged_library_is_not_loaded(library: Path, damage: str) -> None:
    """Loading checks what it loads: altered code never runs."""
    path = library / manifest.LIBRARY
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        half = len(content) // 2
        flipped = bytes(byte ^ 0xFF for byte in content[half : half + 64])
        rest = flipped + content[half + 64 :] if damage == "altered" else b""
        path.write_bytes(content[:half] + rest)

    # In a process of its own, which a truncated shared library would end with a bus error.
    program = "import sys, tuner\ntuner.load(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, str(library)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "tuner.errors.RequestError" in done.stderr.splitlines()[-1]


def test_missing_library_is_not_loaded(tmp_path: Path) -> None:
    """Loading a folder without a library is a wrong request."""
    with pytest.raises(RequestError, match=r"is not a library: it has no manifest\.json"):
        tuner.load(tmp_path)


def test_second_build_is_cached(tuned: Cli) -> None:
    """Nothing is compiled twice, and the copy is whole."""
    answer = tuned("build", "zoo:mlp", "-o", "again.lib", "--json")

    assert answer.json["cached"] is True
    described = manifest.read(tuned.folder / "again.lib")
    manifest.verify(tuned.folder / "again.lib", described)
    assert described == manifest.read(tuned.folder / "mlp.lib")


def test_untuned_network_falls_back(tuned: Cli) -> None:
    """Subgraphs that it shares with a tuned network are tuned, and the others unscheduled."""
    answer = tuned("build", "zoo:mlp?classes=12", "-o", "twelve.lib", "--json")

    assert answer.status == 0, answer.err
    assert (answer.json["tuned"], answer.json["fallbacks"]) == (2, 2)
    assert answer.json["estimated_secs"] is None
    (outputs,) = tuner.load(tuned.folder / "twelve.lib")(feeds()).values()
    assert outputs.shape == (1, 12)


def test_strict_build_fails_on_a_fallback(tuned: Cli) -> None:
    """With --strict a missing record is a wrong request, and nothing is written."""
    answer = tuned("build", "zoo:mlp?classes=13", "-o", "thirteen.lib", "--strict", "--json")

    assert answer.status == 2
    assert "2 of 4 subgraphs have no record" in answer.complaint
    assert not (tuned.folder / "thirteen.lib").exists()


def test_bench_agrees(tuned: Cli) -> None:
    """A bench against every peer finds equal outputs and reports all latencies."""
    benched = tuned(
        "bench",
        "mlp.lib",
        *("--against", "all", "--turns", "2", "--json"),
    ).json

    assert benched["agrees"] is True
    assert [peer["name"] for peer in benched["peers"]] == ["onnxruntime", "openvino"]
    for peer in benched["peers"]:
        assert peer["worst"] < 0.1
        assert len(peer["samples"]) >= 2 * 5
        assert peer["ratio"] == pytest.approx(benched["library_secs"] / peer["median_secs"])
    assert min(benched["library_samples"]) > 0
    assert benched["degenerate"] is False


def test_bench_prints_its_results(tuned: Cli) -> None:
    """Without ``--json``, medians, ratio and agreement are a table."""
    answer = tuned("bench", "mlp.lib", "--against", "onnxruntime", "--turns", "1")

    assert answer.status == 0
    for word in ("library", "estimate", "onnxruntime", "Ratio", "agree", "zoo:mlp"):
        assert word in answer.out


def test_evaluate_takes_arrays(tuned: Cli) -> None:
    """The function compares on given inputs, with the peer that is named."""
    result = tuner.evaluate(
        tuned.folder / "mlp.lib",
        against="openvino",
        arrays=feeds(5),
        n_turns=1,
        data_dir=tuned.data_dir,
    )

    assert result.agrees
    assert [peer.name for peer in result.peers] == ["openvino"]
    assert result.inputs["data"].values == "given"
    with pytest.raises(RequestError, match="float32"):
        tuner.evaluate(
            tuned.folder / "mlp.lib",
            arrays={"data": np.zeros((1, 1, 28, 28))},
            data_dir=tuned.data_dir,
        )


def test_failed_write_keeps_the_old_library(tuned: Cli, tmp_path: Path) -> None:
    """A process that cannot write large files leaves the old library unchanged."""
    out = tmp_path / "out"
    shutil.copytree(tuned.folder / "mlp.lib", out)
    before = (out / manifest.LIBRARY).read_bytes()
    program = (
        "import resource, shutil, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "from pathlib import Path\n"
        "from tuner.errors import WorkError\n"
        "from tuner.files.folders import replace_folder\n"
        "def copy(folder):\n"
        "    shutil.copytree(sys.argv[1], folder, dirs_exist_ok=True)\n"
        "try:\n"
        "    replace_folder(Path(sys.argv[2]), copy)\n"
        "except WorkError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tuned.folder / "mlp.lib"), str(out)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert "cannot write" in done.stdout
    assert (out / manifest.LIBRARY).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """One database for all light models, so that shared subgraphs are tuned once."""
    return Cli(tmp_path_factory.mktemp("light"))


@pytest.mark.parametrize("path", sorted(LIGHT.glob("light_*.onnx")), ids=lambda path: path.stem)
def test_light_models_tune_build_and_agree(shared: Cli, path: Path) -> None:
    """Each light model gets one trial per task, and a library with the right outputs."""

    def go(*arguments: str) -> Answer:
        answer = shared(*arguments, "--random-weights", "0", "--json")
        assert answer.status == 0, answer.err
        return answer

    n_tasks = len(go("tasks", str(path)).json["tasks"])
    options = ("--trials", str(n_tasks), "--trials-per-round", "1", "--cost-model", "random")
    tuned = go("tune", str(path), *options).json
    built = go("build", str(path), "-o", path.stem).json
    against = ("--against", "onnxruntime", "--model", str(path), "--turns", "1")
    benched = go("bench", path.stem, *against).json

    assert tuned["measured_now"] <= n_tasks
    assert built["tuned"] + built["fallbacks"] == n_tasks
    assert built["tuned"] > n_tasks / 2
    assert benched["agrees"]
    assert not benched["degenerate"]
