"""Injected faults on a real network: each has its error kind and costs its own trial alone."""

import contextlib
import json
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from records import database, tasks
from records.models import BestRecord, Job, MeasureRecord
from scheduler.budget import Budget
from tests.cli import Cli, finish
from tuner import cost_models, loops
from tuner.config import Settings
from tuner.context import Context
from tuner.coordinator import Coordinator
from tuner.devices import Device
from tuner.engines.base import Candidate, EvaluatorSettings, RunResult
from tuner.errors import WorkError
from tuner.executors.local import LocalExecutor, scratch_of
from tuner.measuring import Measurer, Subject
from tuner.preparation import ModelRequest, Prepared, prepare
from tuner.searching import Round, SearchSettings, search
from tuner.session import TuningSession
from tuner.tune_options import Status, TuneOptions
from tuner.workplace import Workplace

# By name: the module itself imports TVM, which only workers do.
FAULTY = "tests.engines.faulty"
QUICK = EvaluatorSettings(min_repeat_ms=0, timeout_secs=5.0)

pytestmark = pytest.mark.tvm


@dataclass(frozen=True)
class Rig:
    """Workers of the faulty engine, and the file that tells them what to do wrong."""

    settings: Settings
    workers: LocalExecutor
    control: Path

    def inject(self, **faults: Sequence[dict[str, Any]]) -> None:
        """Replace all faults; takes effect at the next call."""
        for marker in self.control.parent.glob("*.hit"):
            marker.unlink()
        self.control.write_text(json.dumps(faults))

    def prepare(self, sessions: sessionmaker[Session]) -> Prepared:
        """Store the tasks of the multilayer perceptron."""
        request = ModelRequest("zoo:mlp")
        context = Context(self.settings, sessions.kw["bind"], sessions, sessions)
        return prepare(request, context, self.workers.builders, must_run=True)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two builders and a runner, warm."""
    folder = tmp_path_factory.mktemp("faults")
    settings = Settings("", folder, FAULTY, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAULTY_CONTROL", str(folder / "control.json"))
        with LocalExecutor(settings) as workers:
            workers.warm_up()
            yield Rig(settings, workers, folder / "control.json")


@pytest.fixture(autouse=True)
def _no_faults(rig: Rig) -> None:
    """Every test starts with an engine that works."""
    rig.inject()


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[sessionmaker[Session]]:
    """An empty database."""
    engine = database.open_database(f"sqlite:///{tmp_path / 'tuner.db'}")
    yield database.sessions(engine)
    engine.dispose()


@dataclass(frozen=True)
class Batch:
    """A task with candidates, and a measurer for them."""

    place: Workplace
    spec: str
    subject: Subject
    candidates: list[Candidate]

    def measure(self) -> list[RunResult]:
        """Measure all, and return the results in the order of the candidates."""
        found: dict[str, RunResult] = {}

        async def work() -> None:
            def told(candidate: Candidate, result: RunResult) -> None:
                found[candidate.trace] = result

            measurer, device = self.start()
            await measurer.measure(self.subject, self.candidates, device, told)

        loops.run(work())
        assert len(found) == len(self.candidates)
        return [found[candidate.trace] for candidate in self.candidates]

    def start(self) -> tuple[Measurer, Device]:
        """A measurer and the device, for one event loop."""
        place = Workplace(self.place.sessions, self.place.executor, self.place.data_dir)
        place.refresh()
        (device,) = place.devices.values()
        return Measurer(place, self.spec, QUICK, 6.0), device

    def compare(self, traces: Sequence[str], n_turns: int) -> list[RunResult]:
        """Time traces in turns."""

        async def work() -> list[RunResult]:
            measurer, device = self.start()
            return await measurer.compare(self.subject, traces, n_turns, device)

        return loops.run(work())

    def reference(self, subject: Subject) -> Path:
        """Compute a reference."""

        async def work() -> str:
            measurer, device = self.start()
            return await measurer.reference(subject, device)

        return Path(loops.run(work()))

    def only(self, index: int) -> list[int]:
        """What hits one candidate."""
        return [zlib.crc32(self.candidates[index].trace.encode())]


@pytest.fixture(scope="module")
def batch(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Batch:
    """Six candidates of the first layer."""
    rig.inject()
    folder = tmp_path_factory.mktemp("batch")
    engine = database.open_database(f"sqlite:///{folder / 'tuner.db'}")
    prepared = rig.prepare(database.sessions(engine))
    task = prepared.tasks[0]
    with database.sessions(engine)() as session:
        ir = tasks.workload_ir(session, task.task_id)
    engine.dispose()
    spec = prepared.target.spec
    wanted = Round(ir, spec, (), cost_models.create("random", 0).save(), 6, (0, 1))
    candidates = loops.run(search(rig.workers, SearchSettings(), wanted))
    subject = Subject(task.task_id, task.workload_hash, ir)
    place = Workplace(database.sessions(engine), rig.workers, folder)
    made = Batch(place, spec, subject, candidates)
    made.reference(subject)
    return made


def test_candidates_without_faults_run_and_agree(batch: Batch) -> None:
    """The engine behind the faults works, and every sample is kept."""
    results = batch.measure()

    assert len(results) == 6
    for result in results:
        assert result.error_kind is None, result.error_text
        assert result.run_secs is not None
        assert len(result.run_secs) >= 3
        assert min(result.run_secs) > 0
        assert result.max_error is not None
        assert result.max_error < 1e-4


@pytest.mark.parametrize(
    ("function", "fault", "kind", "text"),
    [
        ("build", "raise", "build_error", "InjectedError: injected"),
        # A compiler that crashes does so again: no second attempt.
        ("build", "segfault", "build_error", "SIGSEGV"),
        ("build", "hang", "build_timeout", "longer than 6 s"),
        # Somebody kills the worker, at both attempts.
        ("build", "kill", "worker_lost", "SIGKILL"),
        ("run", "raise", "run_error", "InjectedError: injected"),
        ("run", "segfault", "run_error", "SIGSEGV"),
        ("run", "hang", "run_timeout", "longer than 5 s"),
        ("run", "kill", "worker_lost", "SIGKILL"),
        ("run", "exit", "worker_lost", "status 7"),
        # One element is off; nothing is written at all.
        ("run", "garbage", "wrong_result", "output is off by 0.01"),
        ("build", "silent", "wrong_result", "output is off by inf"),
        # Not what the contract allows, and still no reason to lose the job.
        ("build", "escape", "build_error", "injected"),
        ("run", "escape", "run_error", "injected"),
    ],
)
def test_fault_is_the_result_of_its_candidate_alone(
    rig: Rig, batch: Batch, function: str, fault: str, kind: str, text: str
) -> None:
    """The candidate that is hit gets the error, the other five their samples."""
    rig.inject(**{function: [{"fault": fault, "only": batch.only(2)}]})

    results = batch.measure()

    assert results[2].error_kind == kind
    assert text in results[2].error_text
    assert results[2].run_secs is None
    others = [result for index, result in enumerate(results) if index != 2]
    assert [result.error_text for result in others] == [""] * 5
    assert all(result.run_secs for result in others)


@pytest.mark.parametrize("function", ["build", "run"])
def test_worker_killed_once_costs_no_trial(rig: Rig, batch: Batch, function: str) -> None:
    """A candidate whose worker was killed by somebody is tried once more."""
    rig.inject(**{function: [{"fault": "kill", "only": batch.only(3), "once": True}]})

    assert all(result.run_secs for result in batch.measure())


@pytest.mark.parametrize("fault", ["kill", "segfault", "escape"])
def test_final_that_fails_is_reported_for_every_finalist(
    rig: Rig, batch: Batch, fault: str
) -> None:
    """A final that cannot be run gives errors, so that the records of before stand."""
    rig.inject(run_interleaved=[{"fault": fault}])
    traces = [candidate.trace for candidate in batch.candidates[:1]]

    results = batch.compare(traces, 2)

    assert [result.run_secs for result in results] == [None]
    assert results[0].error_kind is not None


def test_final_times_every_finalist_in_every_turn(batch: Batch) -> None:
    """Samples of all turns come back for each."""
    traces = [candidate.trace for candidate in batch.candidates[:2]]

    results = batch.compare(traces, 4)

    assert all(len(result.run_secs or ()) >= 12 for result in results)


def test_finalist_that_no_longer_builds_costs_the_others_nothing(rig: Rig, batch: Batch) -> None:
    """A build that fails in the final is that finalist's error."""
    rig.inject(build=[{"fault": "raise", "only": batch.only(0)}])
    traces = [candidate.trace for candidate in batch.candidates[:2]]

    first, second = batch.compare(traces, 2)

    assert first.error_kind == "build_error"
    assert second.run_secs


@pytest.mark.parametrize("fault", ["kill", "exit"])
def test_reference_is_tried_again_when_its_worker_is_killed(
    rig: Rig, batch: Batch, fault: str
) -> None:
    """A worker that somebody kills while it computes a reference costs nothing."""
    rig.inject(reference=[{"fault": fault, "once": True}])
    subject = Subject(1, f"again_{fault}", batch.subject.ir)

    assert batch.reference(subject).is_file()


@pytest.mark.parametrize("fault", ["escape", "segfault"])
def test_reference_that_fails_is_a_work_error(rig: Rig, batch: Batch, fault: str) -> None:
    """A workload that cannot be verified says so; no half-written reference is left."""
    rig.inject(reference=[{"fault": fault}])
    subject = Subject(1, f"never_{fault}", batch.subject.ir)

    with pytest.raises(WorkError):
        batch.reference(subject)
    assert not list(batch.place.data_dir.rglob(f"never_{fault}*"))


def test_artifacts_are_removed(rig: Rig, batch: Batch) -> None:
    """What was built for a measurement is gone after it, failed or not."""
    rig.inject(run=[{"fault": "raise", "only": batch.only(1)}])
    scratch = scratch_of(rig.settings.data_dir)
    before = {path.name for path in scratch.rglob("*")}

    batch.measure()

    after = {path.name for path in scratch.rglob("*")}
    assert after == before


def test_job_with_every_fault_finishes(
    rig: Rig, sessions: sessionmaker[Session], tmp_path: Path
) -> None:
    """A job in which a good part of the candidates fails, each its own way, spends its budget."""
    rig.inject(
        build=[
            {"fault": "raise", "one_in": 7},
            {"fault": "silent", "one_in": 5},
            {"fault": "segfault", "one_in": 13},
        ],
        run=[{"fault": "garbage", "one_in": 4}, {"fault": "kill", "one_in": 11, "once": True}],
        propose=[{"fault": "kill", "one_in": 2, "once": True}],
    )

    _tune(rig, sessions, tmp_path, 48)

    with sessions() as session:
        records = list(session.scalars(select(MeasureRecord)))
        best = set(session.scalars(select(BestRecord.record_id)))
        assert session.get_one(Job, 1).state == "done"
    kinds = Counter(record.error_kind for record in records)
    assert len(records) == 48
    assert {None, "build_error", "wrong_result"} <= set(kinds)
    for record in records:
        assert (record.error_kind is None) == record.verified
        hit = not zlib.crc32(record.trace.encode()) % 4
        if hit or not zlib.crc32(record.trace.encode()) % 5:
            assert record.error_kind in ("wrong_result", "build_error")
            assert record.id not in best


def test_wrong_result_is_no_best_record_however_fast(
    rig: Rig, sessions: sessionmaker[Session], tmp_path: Path
) -> None:
    """Where every candidate is wrong, the job fails, and nothing is best."""
    rig.inject(build=[{"fault": "silent"}])

    with pytest.raises(WorkError, match="wrong_result"):
        _tune(rig, sessions, tmp_path, 4)

    with sessions() as session:
        assert {record.error_kind for record in session.scalars(select(MeasureRecord))} == {
            "wrong_result"
        }
        assert session.scalars(select(BestRecord)).first() is None


@pytest.mark.parametrize("fault", ["kill", "escape"])
def test_search_that_always_fails_is_a_failure_with_a_reason(
    rig: Rig, sessions: sessionmaker[Session], tmp_path: Path, fault: str
) -> None:
    """A job in which no search ever worked is a failure of the work, not a finished job."""
    rig.inject(propose=[{"fault": fault}])

    with pytest.raises(WorkError, match="search"):
        _tune(rig, sessions, tmp_path, 4, n_tasks=1)


def test_search_that_failed_once_is_tried_again_by_the_next_run(
    rig: Rig, sessions: sessionmaker[Session], tmp_path: Path
) -> None:
    """Workers that somebody killed during a search take no task away for good."""
    rig.inject(propose=[{"fault": "kill"}])
    with contextlib.suppress(WorkError):
        _tune(rig, sessions, tmp_path, 4, n_tasks=1)
    rig.inject()

    _tune(rig, sessions, tmp_path, 4, n_tasks=1)

    with sessions() as session:
        assert len(list(session.scalars(select(MeasureRecord)))) == 4


def test_search_that_finds_nothing_exhausts_its_task(
    rig: Rig, sessions: sessionmaker[Session], tmp_path: Path
) -> None:
    """A space without candidates ends the job without a trial, and without an endless loop."""
    rig.inject(propose=[{"fault": "nothing"}])

    _tune(rig, sessions, tmp_path, 8)

    with sessions() as session:
        assert list(session.scalars(select(MeasureRecord))) == []
        assert session.get_one(Job, 1).state == "done"


def test_job_whose_workers_are_killed_from_outside_finishes(tmp_path: Path) -> None:
    """Every worker is killed three times, busy or idle; nothing is lost, nothing repeated."""
    cli = Cli(tmp_path)
    arguments = ("--trials", "36", "--trials-per-round", "6", "--cost-model", "random", "--json")
    process = cli.start("tune", "zoo:mlp", *arguments)
    for threshold in (1, 8, 16):
        deadline = time.monotonic() + 60
        while cli.count_records() < threshold and process.poll() is None:
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.02)
        for worker in cli.workers_of(process):
            worker.kill()
    answer = finish(process, 90)

    assert answer.status == 0, answer.err
    assert cli.count_records() == 36
    assert answer.json["measured_now"] == 36


def _tune(
    rig: Rig,
    sessions: sessionmaker[Session],
    folder: Path,
    trials: int,
    n_tasks: int = 4,
) -> None:
    options = TuneOptions(
        Budget(trials),
        trials_per_round=6,
        evaluator=QUICK,
        cost_model="random",
        build_timeout_secs=5.0,
    )
    prepared = rig.prepare(sessions)
    prepared = replace(prepared, tasks=prepared.tasks[:n_tasks])
    place = Workplace(sessions, rig.workers, folder)
    coordinator = Coordinator(place)
    coordinator.run([TuningSession(place, prepared, options, _ignore)])
    for error in coordinator.failures.values():
        raise error


def _ignore(_status: Status) -> None:
    """Watch nothing."""
