"""The GPU report without a GPU: its time, its steps, its text, and a rehearsal on this CPU."""

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import _gpu_commands as commands
from benchmarks import _gpu_writer as writer
from benchmarks._gpu_networks import BERT, RESNET, TINY, Network, export
from benchmarks._gpu_race import Race, relative_error, summarise
from benchmarks._gpu_records import read_job
from benchmarks._gpu_running import Report, Step
from benchmarks._gpu_sharing import Timer, allot, plan
from benchmarks.gpu_report import STEPS, rehearsal
from records import database, measure_records
from records.models import Pick, now
from tests.records import make
from tuner.errors import WorkError

_ROOT = Path(__file__).parents[2]
_TUNING: dict[str, Any] = {
    "n_tasks": 3,
    "trials": 1200,
    "trials_now": 1200,
    "measuring_secs": 200.0,
    "trials_per_sec": 6.0,
    "full_round": {"trials": 64, "secs": 8.0, "trials_per_sec": 8.0},
    "busy": {"gpu0": 0.75},
    "errors": {"run_error": 2, "build_error": 3},
    "error_texts": {"run_error": "an | illegal\nmemory access"},
    "throttled": 0,
    "estimated_secs": 1.5e-3,
}
_RACE: dict[str, Any] = {
    "build": {"secs": 2.0, "tuned": 10, "fallbacks": 1, "estimated_secs": None},
    "agreement": {
        "relative_error": 1e-3,
        "tolerance": 1e-2,
        "agrees": True,
        "torch_relative_error": 2e-3,
    },
    "latency": {
        "ours": {"median_secs": 1e-3, "low_secs": 0.9e-3, "high_secs": 1.1e-3, "n": 50},
        "torch eager": {"median_secs": 2e-3, "low_secs": 1.9e-3, "high_secs": 2.1e-3, "n": 50},
    },
    "ratio": {"torch eager": 0.5},
    "left_out": {"CUDA graph of eager": "it took too long"},
}


class Clock:
    """Clock that a test sets."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        """Return the seconds."""
        return self.at


def test_unused_time_goes_to_later_steps() -> None:
    """Each step gets its share of the time that is left at its start."""
    assert plan(540.0, [1, 2, 3]) == [90.0, 180.0, 270.0]
    assert allot(540.0, [1, 2, 3]) == 90.0
    assert allot(530.0, [2, 3]) == 212.0
    assert allot(100.0, [3]) == 100.0


def test_a_timer_counts_down_to_zero() -> None:
    """The remaining time is never negative."""
    clock = Clock()
    timer = Timer(30.0, clock)
    clock.at += 20.0
    assert (timer.spent, timer.left) == (20.0, 10.0)
    clock.at += 20.0
    assert timer.left == 0.0


def test_the_report_has_every_step(tmp_path: Path) -> None:
    """A failed step has its reason and its results, the others run, and the file is valid JSON."""
    report = Report("llvm", 1.0, tmp_path)
    report.run(
        [
            _step("find", "text"),
            _step("fail"),
            _step("break_down"),
            _step("find_half"),
            Step("gone", "Gone", 1.0, "tests.benchmarks.gone.step"),
        ]
    )

    written = json.loads((tmp_path / "report.json").read_text())
    states = {row["name"]: (row["state"], row["reason"]) for row in written["steps"]}
    facts = {row["name"]: row["facts"] for row in written["steps"]}
    assert states["find"] == ("done", "")
    assert states["fail"] == ("failed", "there is nothing more")
    assert states["break_down"] == ("failed", "KeyError: 'pipe | in a cell'")
    assert states["find_half"] == ("partial", "")
    assert states["gone"][1].startswith("ModuleNotFoundError")
    assert facts["find"] == {"result": "text", "none": "nan"}
    assert facts["fail"] == {"result": "something"}
    text = (tmp_path / "report.md").read_text()
    assert "KeyError: 'pipe \\| in a cell'" in text
    assert "Not reached: the other half." in text
    assert "$ tuner find" in text


def test_an_interrupted_report_says_so(tmp_path: Path) -> None:
    """Earlier results are in the report, and later steps are not reached."""
    with pytest.raises(KeyboardInterrupt):
        Report("llvm", 1.0, tmp_path).run([_step("stop"), _step("find", "text")])

    stopped, left = json.loads((tmp_path / "report.json").read_text())["steps"]
    assert (stopped["state"], stopped["facts"]) == ("interrupted", {"result": "something"})
    assert left["state"] == "not reached"


def test_steps_of_an_earlier_report_are_kept(tmp_path: Path) -> None:
    """They are replaced when they run again; those of another target are dropped."""
    Report("llvm", 1.0, tmp_path).run([_step("fail"), _step("find", "first")])
    again = Report("llvm", 1.0, tmp_path)
    again.run([_step("find", "second")])
    other = Report("llvm -mcpu=skylake", 1.0, tmp_path)
    other.run([_step("find", "third")])

    assert [row["name"] for row in again.rows] == ["fail", "find"]
    assert again.rows[1]["facts"]["result"] == "second"
    assert [row["name"] for row in other.rows] == ["find"]


def test_no_step_starts_without_time(tmp_path: Path) -> None:
    """The report has the reason why the step was not reached."""
    report = Report("llvm", 0.01, tmp_path)
    report.run([_step("find", "text")])

    assert (report.rows[0]["state"], report.rows[0]["reason"]) == (
        "not reached",
        "the time was over",
    )


def test_a_machine_without_a_gpu_loses_it_at_once(tmp_path: Path) -> None:
    """The report has the error of a new process, and skips the steps that need the GPU."""
    if commands.probe() == "":
        pytest.skip("this machine has a GPU")
    report = Report("cuda", 1.0, tmp_path)
    report.run([_step("find", "text"), _step("fail")])

    assert report.lost
    assert [row["state"] for row in report.rows] == ["done", "not reached"]
    assert report.rows[1]["reason"] == "the GPU is lost"
    assert f"**The GPU is lost:** {report.lost}" in (tmp_path / "report.md").read_text()


@pytest.mark.slow("15 s: torch is imported")
def test_a_report_without_results_exits_with_an_error(tmp_path: Path) -> None:
    """The exit status tells a script that there are no results."""
    if commands.probe() == "":
        pytest.skip("this machine has a GPU")
    words = ["--out", str(tmp_path), "--steps", "mlp", "--minutes", "0.5"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_report", *words],
        cwd=_ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["steps"]["mlp"] in ("failed", "not reached")


@pytest.mark.parametrize(
    ("reason", "sticky"),
    [
        ("CUDA: an illegal memory access was encountered", True),
        ("CUDA_ERROR_LAUNCH_FAILED", True),
        ("out of memory", False),
    ],
)
def test_errors_that_end_a_context_are_known(reason: str, sticky: bool) -> None:
    """The driver's message identifies them."""
    assert commands.is_sticky(reason) is sticky


def test_the_text_has_the_numbers() -> None:
    """It has latencies in milliseconds, rates, busy shares, errors, ratios, and the source."""
    facts = {"first_rounds": _TUNING, "tuning": _TUNING, "untuned": _RACE}
    text = writer.as_markdown(_report(title="ResNet-18, float32", facts=facts))

    for expected in (
        "| trials in all | 1,200 |",
        "| the same in the largest round | 8.00: 64 in 8.0 s |",
        "| busy share of devices | gpu0 75% |",
        "| failed trials | build_error 3, run_error 2 |",
        "- run_error: `an \\| illegal memory access`",
        "| ours | 1 | 0.9 - 1.1 | 50 | - |",
        "| torch eager | 2 | 1.9 - 2.1 | 50 | 0.500 |",
        "CUDA graph of eager is left out: it took too long.",
        "10 subgraphs tuned, 1 fallbacks",
        "Auto-scheduling a Neural Network for NVIDIA GPU",
    ):
        assert expected in text


def test_a_rehearsal_names_every_step_with_its_time() -> None:
    """The default is under ten minutes, and the shares add up to it."""
    text = rehearsal(STEPS, 540.0, "cuda")

    assert all(step.title in text for step in STEPS)
    assert sum(plan(540.0, [step.weight for step in STEPS])) == pytest.approx(540.0)


def test_runtimes_take_turns_and_one_that_fails_is_left_out() -> None:
    """Every other turn is in reverse order; the first half of a turn is not counted."""
    calls = []

    def run(name: str, n_runs: int) -> tuple[float, ...]:
        calls.append(name)
        return (1.0,) * (n_runs - n_runs // 2) + (0.5,) * (n_runs // 2)

    def fail(_n_runs: int, _outputs: str) -> tuple[float, ...]:
        raise WorkError("it is broken\nin the second line")

    race = Race({"a": lambda n, _: run("a", n), "b": lambda n, _: run("b", n), "c": fail})
    race.run(2, Timer(60.0))

    assert calls == ["a", "b", "a", "b", "b", "a"]
    assert set(race.samples["a"]) == {0.5}
    assert race.left_out == {"c": "it is broken"}
    assert set(race.samples) == {"a", "b"}


def test_a_summary_has_median_and_quartiles() -> None:
    """They are those of all samples."""
    assert summarise([1.0, 2.0, 3.0, 4.0, 5.0]) == {
        "median_secs": 3.0,
        "low_secs": 2.0,
        "high_secs": 4.0,
        "n": 5,
    }


def test_errors_are_relative_to_the_largest_output(tmp_path: Path) -> None:
    """The error is not finite if an output is not finite."""
    np.savez(tmp_path / "a.npz", y=np.array([1.0, 9.0]))
    np.savez(tmp_path / "b.npz", z=np.array([0.0, 10.0]))
    np.savez(tmp_path / "c.npz", y=np.array([np.nan, 9.0]))

    assert relative_error(tmp_path / "a.npz", tmp_path / "b.npz") == pytest.approx(0.1)
    assert np.isnan(relative_error(tmp_path / "c.npz", tmp_path / "b.npz"))


def test_records_have_the_rate_and_the_errors(tmp_path: Path) -> None:
    """The rate counts from the first pick to the last record of this run."""
    engine = database.open_database(f"sqlite:///{tmp_path / 'tuner.db'}")
    begun = now()
    with database.sessions(engine).begin() as session:
        task_id, job_id = make.task(session), make.job(session)
        pick = Pick(
            job_id=job_id, sequence=0, task_id=task_id, n_trials=64, terms={},
            done=True, secs=2.0, created=begun,
        )  # fmt: skip
        session.add(pick)
        session.flush()
        slow = {"throttled": ["power"]}
        trials = [make.timed(task_id, f"t{i}", 1e-3, pick_id=pick.id) for i in range(9)]
        trials += [make.timed(task_id, "hot", 1e-3, pick_id=pick.id, conditions=slow)]
        trials += [make.failed(task_id, "bad", pick_id=pick.id)]
        sticky = "CUDA: an illegal memory access was encountered"
        trials += [make.failed(task_id, "worse", pick_id=pick.id, error_text=sticky)]
        for stored in measure_records.add_records(session, trials):
            assert stored is not None
    engine.dispose()

    facts = read_job(tmp_path, begun)
    assert (facts["trials"], facts["trials_now"]) == (12, 12)
    assert (facts["throttled"], facts["sticky"]) == (1, 1)
    assert facts["errors"] == {"run_error": 2}
    assert facts["error_texts"] == {"run_error": "Segmentation fault"}
    assert facts["full_round"] == {"trials": 12, "secs": 2.0, "trials_per_sec": 6.0}
    assert facts["trials_per_sec"] == pytest.approx(12 / facts["measuring_secs"])
    assert read_job(tmp_path, begun + timedelta(hours=1))["trials_now"] == 0


def test_busy_shares_are_those_of_the_last_command(tmp_path: Path) -> None:
    """They are empty if no command reported any."""
    log = tmp_path / "step.log"
    assert commands.read_busy(log) == {}
    log.write_text("note: a\nbusy: gpu0 12.5%\nnote: b\nbusy: local 40.0%, gpu0 75.5%\n")
    assert commands.read_busy(log) == {"local": 0.4, "gpu0": 0.755}


@pytest.mark.parametrize("name", [RESNET, BERT])
def test_networks_are_the_same_in_every_process(name: str, tmp_path: Path) -> None:
    """Two exports have the same bytes and the input that the network draws."""
    import onnx

    network = Network(name, "float16", TINY)
    for path in ("a.onnx", "b.onnx"):
        export(network, str(tmp_path / path))

    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    (declared,) = onnx.load(tmp_path / "a.onnx").graph.input
    shape = tuple(dim.dim_value for dim in declared.type.tensor_type.shape.dim)
    assert shape == network.inputs()[declared.name].shape


def test_torch_agrees_with_onnxruntime_on_the_zoo(tmp_path: Path) -> None:
    """Torch can therefore check the outputs of a library."""
    import onnxruntime

    from benchmarks._gpu_peers import run_zoo
    from tuner.networks.zoo import catalogue

    query = "squeezenet_v1.1?image=64"
    x = np.random.default_rng(0).random((1, 64, 64, 3)).astype(np.float32)
    np.savez(tmp_path / "in.npz", data=x)
    run_zoo(query, "cpu", str(tmp_path / "in.npz"), str(tmp_path / "out.npz"))

    session = onnxruntime.InferenceSession(catalogue.build(query).SerializeToString())
    np.savez(tmp_path / "expected.npz", output=session.run(None, {"data": x})[0])
    assert relative_error(tmp_path / "out.npz", tmp_path / "expected.npz") < 1e-5


@pytest.mark.slow("eight minutes of real tuning")
def test_a_rehearsal_on_this_cpu_reaches_its_end(tmp_path: Path) -> None:
    """The steps for a GPU with tiny networks: tuned, built, correct, and compared with torch."""
    steps = ["doctor", "mlp", "bert-layer"]
    words = ["--target", "llvm", "--minutes", "8", "--tiny", "--out", str(tmp_path)]
    subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_report", *words, "--steps", *steps],
        cwd=_ROOT,
        check=True,
        timeout=600,
    )

    rows = json.loads((tmp_path / "report.json").read_text())["steps"]
    assert [(row["name"], row["state"], row["reason"]) for row in rows] == [
        (name, "done", "") for name in steps
    ]
    _, mlp, bert = (row["facts"] for row in rows)
    assert mlp["agreement"]["agrees"]
    assert mlp["tuning"]["trials"] > 0
    assert bert["tuned"]["agreement"]["agrees"]
    assert bert["tuned"]["ratio"]["torch eager"] > 0


def _step(name: str, *arguments: str) -> Step:
    return Step(name, name, 1.0, f"tests.benchmarks.gpu_steps.{name}", arguments)


def _report(title: str, facts: dict[str, Any]) -> dict[str, Any]:
    row = {
        "name": "step",
        "title": title,
        "state": "done",
        "reason": "",
        "secs": 10.0,
        "allotted_secs": 20.0,
        "commands": [],
        "facts": facts,
    }
    return {
        "date": "2026-01-01",
        "target": "cuda",
        "command": "python -m benchmarks.gpu_report",
        "minutes": 9.0,
        "secs": 500.0,
        "lost": "",
        "steps": [row],
    }
