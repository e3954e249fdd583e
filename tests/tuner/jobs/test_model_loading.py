"""Calls of workers that read a model end with errors that its owner understands."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tuner.executors import helpers
from tuner.errors import ModelError, WorkerLost
from tuner.jobs.model_loading import LoadLimits, call_on_model
from tuner.workers.pool import Pool, WorkerSettings


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
