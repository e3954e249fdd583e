"""Networks are split into workloads that are named after their IR, in old databases too."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from records import measure_records, tasks, workload_names
from records.models import MeasureRecord, Network, Task, Workload
from tests.engines import former, toy
from tests.records import make
from tuner.context import Context, open_context
from tuner.errors import OutOfMemory, WorkerLost, WorkError
from tuner.jobs.preparation import Prepared, prepare
from tuner.jobs.requests import ModelRequest
from tuner.workers.base import CallTimeout
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import Pool


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    """An empty database, with an engine that knows the names of older versions."""
    url = f"sqlite:///{tmp_path / 'tuner.db'}"
    with open_context(url, tmp_path, engine=former.NAME) as opened:
        yield opened


@pytest.fixture
def worker(context: Context) -> Iterator[Pool]:
    """A process with the engine."""
    with fresh_worker(context.settings) as pool:
        yield pool


def split(context: Context, worker: Pool) -> Prepared:
    """Split a network."""
    return prepare(ModelRequest("zoo:mlp", toy.SPEC, {}), context, worker, must_run=False)


def make_old(context: Context, ir: bytes | None = None) -> None:
    """Make the database one of an older version, in which the first task has a record."""
    with context.sessions.begin() as session:
        task = session.scalars(select(Task).order_by(Task.id)).first()
        assert task is not None
        measure_records.add_record(session, make.timed(task.id, "t", 1e-3))
        for row in session.scalars(select(Workload)):
            row.hash, row.ir = former.former_name(row.ir), ir or former.old_form(row.ir)
        # The names of passes changed with those of workloads.
        session.execute(update(Network).values(sha256="of an older version"))


def test_workloads_of_an_older_version_keep_their_records(context: Context, worker: Pool) -> None:
    """They get the name of their IR when a network with them is split again."""
    before = split(context, worker)
    make_old(context)

    after = split(context, worker)

    assert [task.task_id for task in after.tasks] == [task.task_id for task in before.tasks]
    with context.sessions() as session:
        rows = session.scalars(select(Workload)).all()
    assert len(rows) == len(before.tasks)
    assert all(row.hash == workload_names.name_of(row.ir) for row in rows)


def test_workload_with_other_ir_under_a_former_name_is_not_used(
    context: Context, worker: Pool
) -> None:
    """Its records stay with it, and the network gets workloads of its own."""
    before = split(context, worker)
    make_old(context, former.old_form(b"other"))

    after = split(context, worker)

    assert {task.task_id for task in after.tasks}.isdisjoint(t.task_id for t in before.tasks)
    with context.sessions() as session:
        stmt = select(Task.id).join(MeasureRecord, MeasureRecord.task_id == Task.id)
        assert session.scalar(stmt) == before.tasks[0].task_id


def test_workload_that_another_process_stores_meanwhile_is_not_renamed(
    migrated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are looked up before the engine writes the new form of the IR."""
    with (
        open_context(migrated, tmp_path, engine=former.NAME) as context,
        fresh_worker(context.settings) as worker,
    ):
        split(context, worker)
        make_old(context)
        call = worker.call

        def store_first(module: str, function: str, *args: object, **options: object) -> object:
            value = call(module, function, *args, **options)  # type: ignore[arg-type]
            if function == "canonical":
                for ir in value:
                    name = workload_names.name_of(ir)
                    new = tasks.NewWorkload(hash=name, engine=former.NAME, ir=ir, flop=1, name="")
                    with context.sessions.begin() as session:
                        tasks.ensure_workload(session, new)
            return value

        monkeypatch.setattr(worker, "call", store_first)
        after = split(context, worker)

        with context.sessions() as session:
            names = session.scalars(select(Workload.hash)).all()
        assert {task.workload_hash for task in after.tasks} < set(names)
        assert len(names) == 2 * len(after.tasks)


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
