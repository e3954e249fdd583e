"""Calls of workers that read a model end with errors that its owner understands."""

import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx
import pytest

from tests.tuner.executors import helpers
from tests.tuner.networks.models import relu_model
from tests.tuner.workers import inside_sandbox
from tuner.errors import ModelError, WorkerLost, WorkError
from tuner.files import disk_floor
from tuner.jobs.models.model_loading import (
    LoadLimits,
    ModelQuery,
    call_on_model,
    check_file,
    load_in,
)
from tuner.networks.base import LoadedModel, network_hash
from tuner.settings import read_settings
from tuner.workers.pool import Pool, WorkerSettings
from tuner.workers.processes.pause_group import PauseGroup


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Pool]:
    """A process that may be ended."""
    with Pool(WorkerSettings(1, tmp_path / "worker.log")) as opened:
        yield opened


def read_model(worker: Pool, function: str, argument: float, secs: float = 30.0) -> None:
    """Call a function as one that reads a model."""
    limits = LoadLimits(secs)
    call_on_model(worker, helpers.NAME, function, argument, limits=limits, subject="reading it")


def test_a_crash_is_an_error_of_the_model(worker: Pool) -> None:
    """It would crash the next process too; it does not lack memory."""
    with pytest.raises(ModelError, match="reading it crashed its process") as caught:
        read_model(worker, "die", signal.SIGSEGV)
    assert caught.value.code == "importer-crashed"


def test_a_time_out_is_an_error_of_the_model(worker: Pool) -> None:
    """The message has the limit."""
    with pytest.raises(ModelError, match=r"reading it took longer than 0\.5 s") as caught:
        read_model(worker, "hang", 600.0, secs=0.5)
    assert caught.value.code == "too-slow"


def test_a_killed_process_is_no_error_of_the_model(worker: Pool) -> None:
    """It may have been killed for any reason."""
    with pytest.raises(WorkerLost):
        read_model(worker, "die", signal.SIGKILL)


class Liar:
    """A worker whose loader answers what it was told by a hostile model."""

    def __init__(self, worker: Pool, *answer: object) -> None:
        self.exchange = worker.exchange
        self._worker, self._answer = worker, answer

    def call(self, _module: str, _function: str, *args: object, **options: object) -> object:
        """Lie about the model, into the folder that the loader has."""
        *first, kind = self._answer
        arguments = (*first, args[3], kind)
        return self._worker.call(inside_sandbox.NAME, "lie", *arguments, **options)  # type: ignore[arg-type]


@pytest.fixture
def victim(worker: Pool, tmp_path: Path) -> LoadedModel:
    """The cleaned model of another job."""
    onnx.save(relu_model(1, 4), tmp_path / "m.onnx")
    return load_in(worker, tmp_path / "models", ModelQuery(str(tmp_path / "m.onnx"), {}, None))


@pytest.mark.parametrize(
    ("kind", "form"),
    [("file", "onnx"), ("file", "pt2"), ("link", "onnx"), ("pipe", "onnx"), ("elsewhere", "onnx")],
)
def test_a_loader_cannot_pass_a_file_off_as_another_model(
    worker: Pool, victim: LoadedModel, kind: str, form: str
) -> None:
    """Neither under its hash, nor by its name: the hash is computed here, of what is kept."""
    kept = Path(victim.file.path)
    content = b"other" if kind == "file" else str(kept).encode()
    liar = Liar(worker, victim.sha256, content, form, kind)

    with pytest.raises(WorkError):
        load_in(liar, kept.parent, ModelQuery("m.onnx", {}, None))  # type: ignore[arg-type]

    check_file(victim)
    assert list(kept.parent.iterdir()) == [kept]


def test_a_loader_may_name_its_own_file(worker: Pool, victim: LoadedModel) -> None:
    """It is kept under the hash that it has."""
    content = b"another model"
    sha256 = network_hash(content, {})
    liar = Liar(worker, sha256, content, "onnx", "file")

    loaded = load_in(liar, Path(victim.file.path).parent, ModelQuery("m.onnx", {}, None))  # type: ignore[arg-type]

    assert Path(loaded.file.path).read_bytes() == content
    check_file(loaded)


def test_a_loader_cannot_put_another_folder_in_the_place_of_its_own(
    worker: Pool, tmp_path: Path
) -> None:
    """The file of the user that has the name would be kept."""
    sha256 = network_hash(b"weights", {})
    own = tmp_path / "own" / f"{sha256}.onnx"
    own.parent.mkdir()
    own.write_bytes(b"weights")
    liar = Liar(worker, sha256, str(own).encode(), "onnx", "replaced folder")

    with pytest.raises(WorkError, match="No such file"):
        load_in(liar, tmp_path / "models", ModelQuery("m.onnx", {}, None))  # type: ignore[arg-type]

    assert not list((tmp_path / "models").iterdir())


@pytest.mark.parametrize(
    ("kind", "problem"), [("large", "2147483648 bytes"), ("file", "4503.6 TB are kept free")]
)
def test_a_file_that_does_not_fit_is_not_copied(
    worker: Pool, tmp_path: Path, kind: str, problem: str
) -> None:
    """Neither one that no model can have, nor one for which a service has no disk space."""
    settings = read_settings({"data_dir": tmp_path}, {})
    retention = replace(settings.retention, min_free_disk=2**52)
    shortage = partial(disk_floor.shortage, replace(settings, retention=retention))
    liar = Liar(worker, network_hash(b"model", {}), b"model", "onnx", kind)
    query = ModelQuery("m.onnx", {}, None)

    with pytest.raises(WorkError, match=re.escape(problem)):
        load_in(liar, tmp_path / "models", query, LoadLimits(shortage=shortage))  # type: ignore[arg-type]

    assert not list((tmp_path / "models").iterdir())


def test_copying_waits_while_background_work_is_paused(worker: Pool, tmp_path: Path) -> None:
    """It would take memory bandwidth from a measurement."""

    class Counting(PauseGroup):
        n_waits = 0

        def wait_until_running(self) -> None:
            self.n_waits += 1
            super().wait_until_running()

    content, group = bytes(2**21), Counting()
    liar = Liar(worker, network_hash(content, {}), content, "onnx", "file")
    with group.collecting():
        load_in(liar, tmp_path / "models", ModelQuery("m.onnx", {}, None))  # type: ignore[arg-type]

    assert group.n_waits == 2
