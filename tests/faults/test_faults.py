"""Injected faults on a real network: each has its error kind and costs its own trial alone."""

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from records import database, tasks
from records.models import BestRecord, Job, MeasureRecord
from tests.cli import Cli, finish
from tests.engines.faults import Control
from tests.waiting import wait_for
from tuner import cost_models
from tuner.context import Context
from tuner.devices.device import Device
from tuner.engines.base import Candidate, EvaluatorSettings, RunResult
from tuner.errors import WorkError
from tuner.executors.local import LocalExecutor
from tuner.jobs.preparation import Prepared, prepare
from tuner.jobs.requests import ModelRequest
from tuner.jobs.spec import TuneSpec
from tuner.measure.context import MeasureSetup, TaskUnderTest
from tuner.measure.interleaved_timing import InterleavedTiming
from tuner.measure.references import ensure_references
from tuner.measure.round_measurement import RoundMeasurement
from tuner.settings import Settings
from tuner.tuning import event_loop
from tuner.tuning.context import TuningContext
from tuner.tuning.coordinator import Coordinator
from tuner.tuning.job.session_options import SessionOptions
from tuner.tuning.rounds.search import SearchInputs, SearchSettings, search
from tuner.tuning.session import TuningSession
from tuner.tuning.status import TuningStatus
from tuner.workers.confinement.sandbox_paths import scratch_folder

# By name: the module itself imports TVM, which only workers do.
FAULTY = "tests.engines.faulty"
# A new worker imports TVM in that time, on a busy machine too; what hangs does so in a toy.
QUICK = EvaluatorSettings(min_repeat_ms=0, timeout_secs=300.0)
# Function, fault, and the kind and a part of the text of the error that results.
FAULTS = [
    ("build", "raise", "build_error", "InjectedError: injected"),
    # A compiler that crashes does so again: no second attempt.
    ("build", "segfault", "build_error", "SIGSEGV"),
    # The worker is killed at both attempts.
    ("build", "kill", "worker_lost", "SIGKILL"),
    ("run", "raise", "run_error", "InjectedError: injected"),
    ("run", "segfault", "run_error", "SIGSEGV"),
    ("run", "kill", "worker_lost", "SIGKILL"),
    # One element is off; nothing is written at all.
    ("run", "garbage", "wrong_result", "1 of 128 elements are wrong"),
    ("build", "silent", "wrong_result", "128 of 128 elements are wrong"),
    # Not what the contract allows, and still no reason to lose the job.
    ("build", "escape", "build_error", "injected"),
    ("run", "escape", "run_error", "injected"),
]
# Candidates that no fault hits.
_SPARED = 4
_N_CANDIDATES = len(FAULTS) + _SPARED

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.slow("kills and hangs processes of the real engine for a minute"),
]


@dataclass(frozen=True)
class Rig:
    """Workers of the faulty engine, and the control of their faults."""

    settings: Settings
    workers: LocalExecutor
    control: Control

    def prepare(self, sessions: sessionmaker[Session]) -> Prepared:
        """Store the tasks of the multilayer perceptron."""
        request = ModelRequest("zoo:mlp")
        context = Context(self.settings, sessions.kw["bind"], sessions, sessions)
        return prepare(request, context, self.workers.builders, must_run=True)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two builders and a runner, warm."""
    folder = tmp_path_factory.mktemp("faults")
    settings = Settings("", folder, FAULTY, 2, worker_sandbox="off")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAULTY_CONTROL", str(folder / "control.json"))
        with LocalExecutor(settings) as workers:
            workers.warm_up()
            yield Rig(settings, workers, Control(folder / "control.json"))


@pytest.fixture(autouse=True)
def _no_faults(rig: Rig) -> None:
    """Every test starts with an engine that works."""
    rig.control.inject()


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[sessionmaker[Session]]:
    """An empty database."""
    engine = database.open_database(f"sqlite:///{tmp_path / 'tuner.db'}")
    yield database.sessions(engine)
    engine.dispose()


@dataclass(frozen=True)
class Collector:
    """Results of a round by trace."""

    results: dict[str, RunResult] = field(default_factory=dict)

    def on_device_acquired(self) -> None:
        """Do nothing."""

    def on_result(self, candidate: Candidate, result: RunResult) -> None:
        """Keep a result."""
        self.results[candidate.trace] = result


@dataclass(frozen=True)
class Batch:
    """A task with candidates, and how they are measured."""

    context: TuningContext
    spec: str
    task: TaskUnderTest
    candidates: list[Candidate]

    def measure(self) -> list[RunResult]:
        """Measure all, and return the results in the order of the candidates."""
        collector = Collector()

        async def work() -> None:
            setup, device = self.start()
            await RoundMeasurement(setup, self.task, device, collector).measure(self.candidates)

        event_loop.run(work())
        assert len(collector.results) == len(self.candidates)
        return [collector.results[candidate.trace] for candidate in self.candidates]

    def start(self) -> tuple[MeasureSetup, Device]:
        """Return a setup and the device, for one event loop."""
        tuning_context = TuningContext(
            self.context.sessions, self.context.executor, self.context.measure_context.data_dir
        )
        tuning_context.refresh()
        (device,) = tuning_context.devices.values()
        setup = MeasureSetup(tuning_context.measure_context, self.spec, QUICK, QUICK.timeout_secs)
        return setup, device

    def compare(self, traces: Sequence[str], n_turns: int) -> list[RunResult]:
        """Time traces in turns."""

        async def work() -> list[RunResult]:
            setup, device = self.start()
            timing = InterleavedTiming(setup, self.task, traces)
            await timing.build()
            results = await timing.time(range(len(traces)), device, n_turns=n_turns)
            timing.close()
            return results

        return event_loop.run(work())

    def references(self, task: TaskUnderTest) -> tuple[str, ...]:
        """Compute the references of a task."""

        async def work() -> tuple[str, ...]:
            setup, _ = self.start()
            return await ensure_references(setup, task)

        return event_loop.run(work())

    def only(self, index: int) -> list[int]:
        """Return the checksum by which a fault hits one candidate alone."""
        return [zlib.crc32(self.candidates[index].trace.encode())]


@pytest.fixture(scope="module")
def batch(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Batch:
    """Candidates of the first layer, one for each fault and some more."""
    rig.control.inject()
    folder = tmp_path_factory.mktemp("batch")
    engine = database.open_database(f"sqlite:///{folder / 'tuner.db'}")
    prepared = rig.prepare(database.sessions(engine))
    task = prepared.tasks[0]
    with database.sessions(engine)() as session:
        ir = tasks.workload_ir(session, task.task_id)
    engine.dispose()
    spec = prepared.target.spec
    # Islands may propose the same programs, which leaves fewer candidates than requested.
    n_requested = 2 * _N_CANDIDATES
    inputs = SearchInputs(ir, spec, (), cost_models.create("random", 0).save(), n_requested, (0, 1))
    proposed = event_loop.run(search(rig.workers, SearchSettings(), inputs))
    candidates = proposed[:_N_CANDIDATES]
    assert len(candidates) == _N_CANDIDATES, f"{len(proposed)} of {n_requested}"
    under_test = TaskUnderTest(task.task_id, task.workload_hash, ir)
    tuning_context = TuningContext(database.sessions(engine), rig.workers, folder)
    made = Batch(tuning_context, spec, under_test, candidates)
    made.references(under_test)
    return made


@dataclass(frozen=True)
class MeasuredBatch:
    """Results of candidates, and the artifacts that measuring left behind."""

    results: list[RunResult]
    left: set[str]


@pytest.fixture(scope="module")
def measured(rig: Rig, batch: Batch) -> MeasuredBatch:
    """Measure every candidate, each with the fault that it shall have."""
    faults: dict[str, list[dict[str, Any]]] = {"build": [], "run": []}
    for index, (function, fault, *_) in enumerate(FAULTS):
        faults[function].append({"fault": fault, "only": batch.only(index)})
    rig.control.inject(**faults)
    scratch = scratch_folder(rig.settings.data_dir)
    before = {path.name for path in scratch.rglob("*")}
    results = batch.measure()
    return MeasuredBatch(results, {path.name for path in scratch.rglob("*")} - before)


def test_candidates_without_faults_run_and_agree(measured: MeasuredBatch) -> None:
    """Faults of other candidates do not affect them, and every sample is kept."""
    for result in measured.results[-_SPARED:]:
        assert result.error_kind is None, result.error_text
        assert result.run_secs is not None
        assert len(result.run_secs) >= 3
        assert min(result.run_secs) > 0
        assert result.max_error is not None
        assert result.max_error < 1e-4


@pytest.mark.parametrize("index", range(len(FAULTS)), ids=["-".join(row[:3]) for row in FAULTS])
def test_fault_is_the_result_of_its_candidate(measured: MeasuredBatch, index: int) -> None:
    """Each candidate that is hit gets its error, and no samples."""
    *_, kind, text = FAULTS[index]

    assert measured.results[index].error_kind == kind
    assert text in measured.results[index].error_text
    assert measured.results[index].run_secs is None


def test_artifacts_are_removed(measured: MeasuredBatch) -> None:
    """Measuring leaves no artifact, whether a candidate failed or not."""
    assert measured.left == set()


def test_final_times_every_finalist_in_every_turn(batch: Batch) -> None:
    """Samples of all turns come back for each."""
    traces = [candidate.trace for candidate in batch.candidates[:2]]

    results = batch.compare(traces, 4)

    assert all(len(result.run_secs or ()) >= 12 for result in results)


@pytest.mark.in_ci
def test_job_with_every_fault_finishes(
    rig: Rig, sessions: sessionmaker[Session], tmp_path: Path
) -> None:
    """A job whose candidates fail in different ways spends its budget."""
    rig.control.inject(
        build=[
            {"fault": "raise", "one_in": 7},
            {"fault": "silent", "one_in": 5},
            {"fault": "segfault", "one_in": 13},
        ],
        run=[{"fault": "garbage", "one_in": 4}, {"fault": "kill", "one_in": 11, "once": True}],
        propose=[{"fault": "kill", "one_in": 4, "once": True}],
    )

    _tune(rig, sessions, tmp_path, 24)

    with sessions() as session:
        records = list(session.scalars(select(MeasureRecord)))
        best = set(session.scalars(select(BestRecord.record_id)))
        assert session.get_one(Job, 1).state == "done"
    kinds = Counter(record.error_kind for record in records)
    assert len(records) == 24
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
    """A job whose candidates are all wrong fails, and no record becomes the best."""
    rig.control.inject(build=[{"fault": "silent"}])

    with pytest.raises(WorkError, match="wrong_result"):
        _tune(rig, sessions, tmp_path, 4)

    with sessions() as session:
        assert {record.error_kind for record in session.scalars(select(MeasureRecord))} == {
            "wrong_result"
        }
        assert session.scalars(select(BestRecord)).first() is None


def test_job_whose_workers_are_killed_from_outside_finishes(tmp_path: Path) -> None:
    """Every worker is killed at once, busy or idle; nothing is lost, nothing repeated."""
    cli = Cli(tmp_path)
    arguments = ("--trials", "10", "--trials-per-round", "4", "--cost-model", "random", "--json")
    process = cli.start("tune", "zoo:mlp", *arguments)
    wait_for(lambda: cli.count_records() >= 4 or process.poll() is not None)
    workers = cli.workers_of(process)
    for worker in workers:
        worker.kill()
    answer = finish(process, 120)

    assert answer.status == 0, answer.err
    assert workers
    assert cli.count_records() == 10
    assert answer.json["measured_now"] == 10


def _tune(
    rig: Rig,
    sessions: sessionmaker[Session],
    folder: Path,
    trials: int,
) -> None:
    spec = TuneSpec(
        trials=trials,
        trials_per_round=6,
        min_repeat_ms=QUICK.min_repeat_ms,
        run_timeout=QUICK.timeout_secs,
        cost_model="random",
        build_timeout=QUICK.timeout_secs,
    )
    prepared = rig.prepare(sessions)
    tuning_context = TuningContext(sessions, rig.workers, folder)
    coordinator = Coordinator(tuning_context)
    coordinator.run([TuningSession(tuning_context, prepared, SessionOptions(spec), _ignore)])
    for error in coordinator.failures.values():
        raise error


def _ignore(_status: TuningStatus) -> None:
    """Watch nothing."""
