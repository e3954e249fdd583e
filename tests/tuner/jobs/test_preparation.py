"""Networks are split into workloads that are named after their IR."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from records.models import Workload
from tests.engines import toy
from tuner.context import Context, open_context
from tuner.errors import OutOfMemory, RequestError, WorkerLost, WorkError
from tuner.jobs.preparation import Prepared, narrow, prepare
from tuner.jobs.requests import ModelRequest
from tuner.workers.base import CallTimeout
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import Pool


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    """An empty database, with the toy engine."""
    url = f"sqlite:///{tmp_path / 'tuner.db'}"
    with open_context(url, tmp_path, engine=toy.NAME) as opened:
        yield opened


@pytest.fixture
def worker(context: Context) -> Iterator[Pool]:
    """A process with the engine."""
    with fresh_worker(context.settings) as pool:
        yield pool


def split(context: Context, worker: Pool) -> Prepared:
    """Split a network."""
    return prepare(ModelRequest("zoo:mlp", toy.SPEC, {}), context, worker, must_run=False)


def test_engine_that_names_a_workload_like_another_is_refused(
    context: Context, worker: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is stored."""
    call = worker.call

    def falsify(module: str, function: str, *args: object, **options: object) -> object:
        value = call(module, function, *args, **options)  # type: ignore[arg-type]
        if function != "extract":
            return value
        first, *others = value.tasks
        return replace(value, tasks=(replace(first, ir=others[0].ir), *others))

    monkeypatch.setattr(worker, "call", falsify)

    with pytest.raises(WorkError, match="and its IR is"):
        split(context, worker)
    with context.sessions() as session:
        assert session.scalars(select(Workload)).all() == []


def test_a_part_of_a_network_is_a_network_of_its_own(context: Context, worker: Pool) -> None:
    """It has the tasks with one of the texts in the name, or at the beginning of the hash."""
    whole = split(context, worker)
    light = next(task for task in whole.tasks if task.name == "light[1]")
    part, again = (
        narrow(context.sessions, whole, texts)
        for texts in (["HEAVY", light.workload_hash[:16]], [light.workload_hash, "heavy"])
    )

    assert [(task.name, task.weight) for task in part.tasks] == [("heavy[1]", 3), ("light[1]", 1)]
    assert part.network_id == again.network_id != whole.network_id
    assert {task.task_id for task in part.tasks} <= {task.task_id for task in whole.tasks}
    assert narrow(context.sessions, whole, []) is whole
    with pytest.raises(RequestError, match="'conv' fits none of the 4 tasks"):
        narrow(context.sessions, whole, ["heavy", "conv"])


def failing_profile(worker: Pool, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Make the profiling of workloads fail."""
    call = worker.call

    def fail(module: str, function: str, *args: Any, **options: Any) -> Any:
        if function == "profile":
            raise error
        return call(module, function, *args, **options)

    monkeypatch.setattr(worker, "call", fail)


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemory("profile needs more memory than it may have"),
        CallTimeout(),
        WorkerLost("the worker was killed by SIGKILL", crashed=False, killed=True),
    ],
)
def test_a_workload_too_large_to_profile_fails_its_job(
    context: Context, worker: Pool, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Its sizes would be unknown, and it would be measured whatever they are."""
    failing_profile(worker, monkeypatch, error)

    with pytest.raises(WorkError):
        split(context, worker)


def test_a_workload_that_the_engine_cannot_profile_is_tuned(
    context: Context, worker: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its roofs are unknown."""
    failing_profile(worker, monkeypatch, WorkError("profile failed: KeyError"))

    assert all(task.profile is None for task in split(context, worker).tasks)
