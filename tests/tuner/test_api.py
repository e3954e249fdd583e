"""The Python API."""

import asyncio
import io
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tuner
from tests.cli import ROOT
from tests.engines import toy
from tests.tuner.networks.models import relu_model
from tuner.errors import RequestError
from tuner.formatting import milliseconds
from tuner.settings import SettingOverrides

if TYPE_CHECKING:
    from tuner.tuning.status import TuningStatus


class Terminal(io.StringIO):
    """A stream of a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@pytest.fixture
def overrides(tmp_path: Path) -> SettingOverrides:
    """Settings of an empty data directory."""
    return {"data_dir": tmp_path / "data", "engine": toy.NAME}


def test_importing_the_package_is_cheap() -> None:
    """Neither a database nor numpy is imported before a function needs it."""
    modules = ("tvm", "sqlalchemy", "numpy", "rich", "platformdirs")
    program = f"import sys, tuner; print([m for m in {modules} if m in sys.modules])"
    command = [sys.executable, "-c", program]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_jit_stays_a_function_when_the_package_of_that_name_is_imported() -> None:
    """An import of ``tuner.jit`` does not replace the function by the package."""
    program = "import tuner, tuner.jit.options, tuner.jit.factory; print(callable(tuner.jit))"
    command = [sys.executable, "-c", program]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "True"


def test_a_network_is_split_into_tasks(overrides: SettingOverrides) -> None:
    """Definitions are reported on request alone, one for each workload."""
    plain = tuner.extract("zoo:mlp", **overrides)
    defined = tuner.extract("zoo:mlp", definitions=True, **overrides)

    assert not plain.definitions
    assert defined.tasks == plain.tasks
    assert sorted(defined.definitions) == sorted(task.workload for task in defined.tasks)
    assert all(defined.definitions.values())


def test_shapes_are_sequences_of_integers(overrides: SettingOverrides, tmp_path: Path) -> None:
    """Lists and numpy integers are accepted; an empty list of shapes is like none."""
    path = tmp_path / "model.onnx"
    path.write_bytes(relu_model("n", 8).SerializeToString())

    report = tuner.extract(path, inputs={"data": [np.int64(2), 8]}, **overrides)

    assert report.tasks == tuner.extract(path, inputs={"data": (2, 8)}, **overrides).tasks
    with pytest.raises(RequestError, match="the shape must be fixed for input 'data'"):
        tuner.build(path, tmp_path / "model.lib", inputs=[], **overrides)


def test_tuning_resumes(overrides: SettingOverrides) -> None:
    """The budget counts the trials of earlier calls."""
    first = tuner.tune("zoo:mlp", trials=8, **overrides)
    second = tuner.tune("zoo:mlp", trials=12, **overrides)

    assert (first.measured_now, second.measured_now, second.trials) == (8, 4, 12)


def test_tuning_prints_nothing_and_calls_back(
    overrides: SettingOverrides, capfd: pytest.CaptureFixture[str]
) -> None:
    """The callback receives statuses up to the whole budget; stdout and stderr stay empty."""
    statuses: list[TuningStatus] = []

    report = tuner.tune("zoo:mlp", trials=8, on_status=statuses.append, **overrides)

    assert statuses[-1].spent_trials == report.trials == 8
    assert capfd.readouterr() == ("", "")


def test_tuning_works_inside_an_event_loop(overrides: SettingOverrides) -> None:
    """A notebook runs its cells inside one."""

    async def cell() -> int:
        return tuner.tune("zoo:mlp", trials=4, **overrides).measured_now

    assert asyncio.run(cell()) == 4


def test_a_library_is_built_from_the_best_records(
    overrides: SettingOverrides, tmp_path: Path
) -> None:
    """Every tuned task is built from a record."""
    tuner.tune("zoo:mlp", trials=16, **overrides)

    report = tuner.build("zoo:mlp", tmp_path / "mlp.lib", **overrides)

    assert report.n_fallbacks == 0
    assert (tmp_path / "mlp.lib" / "manifest.json").is_file()


def test_a_line_of_progress_is_rewritten_on_a_terminal(
    overrides: SettingOverrides, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends as an empty line; ``progress=False`` prints nothing."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    tuner.tune("zoo:mlp", trials=4, progress=False, **overrides)
    silent = terminal.getvalue()
    tuner.tune("zoo:mlp", trials=8, **overrides)
    printed = terminal.getvalue()

    assert silent == ""
    assert "\r\x1b[KTotal latency " in printed
    assert printed.endswith("\r\x1b[K")


def test_results_print_as_one_line_and_as_tables(
    overrides: SettingOverrides, tmp_path: Path
) -> None:
    """The line has the latency; the HTML has a row for each task or subgraph."""
    tuned = tuner.tune("zoo:mlp", trials=16, **overrides)
    built = tuner.build("zoo:mlp", tmp_path / "mlp.lib", **overrides)
    split = tuner.extract("zoo:mlp", **overrides)

    assert repr(tuned).startswith("<TuneReport: job 1 of mlp: ")
    assert repr(built) == (
        f"<BuildReport: {tmp_path / 'mlp.lib'}: 4 of 4 subgraphs tuned, "
        f"estimated {milliseconds(built.manifest.estimated_secs)} ms>"
    )
    assert repr(split).startswith("<ExtractReport: mlp: 4 tasks, ")
    assert repr(tuned.tasks) == "<4 rows of TaskView>"
    for result in (tuned, built, split, tuned.tasks, split.tasks):
        assert result._repr_html_().count("<tr>") == 5


def test_jobs_and_records_are_read(overrides: SettingOverrides) -> None:
    """A job is the one that changed last by default; records are selected as in the client."""
    with pytest.raises(RequestError, match="there is no job"):
        tuner.job(**overrides)
    tuned = tuner.tune("zoo:mlp", trials=16, **overrides)
    job = tuner.job(**overrides)
    records = tuner.list_records(**overrides)

    assert repr(job).startswith("<JobReport: job 1 of mlp, done: ")
    assert [task.latency_secs for task in job.tasks] == [t.latency_secs for t in tuned.tasks]
    assert job.total_latency_secs == tuned.total_latency_secs
    assert job.history.points[-1].trials == 16
    assert len(records) == 16
    assert tuner.list_records(limit=3, **overrides) == records[:3]
    bests = tuner.best_records(job=1, **overrides)
    assert {best.task for best in bests} == {task.task_id for task in job.tasks}
    (best,) = tuner.best_records(workload=bests[0].workload[:16], **overrides)
    assert best == bests[0]
    with pytest.raises(RequestError, match="there is no job 2"):
        tuner.job(2, **overrides)


def test_a_profile_needs_a_run() -> None:
    """The number of runs is at least 1."""
    with pytest.raises(RequestError, match="n_runs must be at least 1, got 0"):
        tuner.profile("mlp.lib", n_runs=0)


def test_the_version_is_that_of_the_package() -> None:
    """It is read when it is first used."""
    assert tuner.__version__ == version("subgraph-tuner")


def test_a_wrong_request_raises(overrides: SettingOverrides, tmp_path: Path) -> None:
    """The error says what is wrong."""
    with pytest.raises(RequestError, match=r"no zoo network .nonsense."):
        tuner.extract("zoo:nonsense", **overrides)
    with pytest.raises(RequestError, match="allocator: 'best' is unknown; choose one of gradient"):
        tuner.tune("zoo:mlp", allocator="best", **overrides)
    with pytest.raises(TypeError, match="at least one model"):
        tuner.tune(**overrides)
    with pytest.raises(RequestError, match=r"none\.lib"):
        tuner.evaluate(tmp_path / "none.lib", **overrides)
