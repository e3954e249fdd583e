"""Two devices of a toy engine with injected faults, and checks that hold after any fault."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from records import database
from records.models import BestRecord, MeasureRecord, Pick
from tests.engines import faulty_toy, toy
from tests.engines.faults import CONTROL, Control
from tests.engines.toy_network import Workshop
from tuner.devices.runners.local import LocalRunner
from tuner.executors.local import LocalExecutor
from tuner.settings import Settings
from tuner.tuning.rounds.search import SearchSettings
from tuner.tuning.session import TuningSession
from tuner.workers.base import FutureCall

# A call that hangs costs seconds, not minutes.
QUICK: dict[str, Any] = {
    "trials_per_round": 4,
    "min_repeat_ms": 0,
    "run_timeout": 2.0,
    "search": SearchSettings(timeout_secs=3.0),
    "build_timeout": 2.0,
}

_RUN_SECS = "0.01"


class FaultyExecutor(LocalExecutor):
    """An executor that trains with the engine, so that faults reach training too."""

    def train(self, *args: Any, timeout_secs: float) -> FutureCall:
        """Train a cost model in a builder."""
        return self.submit("train", *args, timeout_secs=timeout_secs)


@dataclass
class Hall(Workshop):
    """A workshop whose workers fail as a control file demands."""

    control: Control = field(default_factory=lambda: Control(Path()))

    def job_of(self, name: str, trials: int, **options: Any) -> TuningSession:
        """Open a job on three tasks that no other job has."""
        tasks = [toy.make_task(f"{name}_{i}", weight=1 + i, base_secs=1e-3) for i in range(3)]
        return self.session(self.prepare(name, extracted=tasks), trials, **{**QUICK, **options})

    def check_whole(self, *jobs: TuningSession, trials: int) -> None:
        """Check that every job is done and spent its budget, and that every trial counts once."""
        assert [self.job(job.job_id).state for job in jobs] == ["done"] * len(jobs)
        check_counts(self.sessions, {job.job_id: trials for job in jobs})
        check_bests(self.sessions)


def check_counts(sessions: sessionmaker[Session], trials: dict[int, int]) -> None:
    """Check the number of records of each job; each trace counts once, in its pick too."""
    with sessions() as session:
        rows = session.execute(
            select(MeasureRecord.task_id, MeasureRecord.trace_hash, MeasureRecord.pick_id)
        ).all()
        picks = session.scalars(select(Pick)).all()
    assert set(Counter(row[:2] for row in rows).values()) <= {1}
    of_pick = Counter(row[2] for row in rows)
    assert {pick.id: pick.n_measured for pick in picks} == {p.id: of_pick[p.id] for p in picks}
    spent = Counter[int]()
    for pick in picks:
        spent[pick.job_id] += pick.n_measured
    assert spent == trials
    for job_id in trials:
        numbers = sorted(pick.sequence for pick in picks if pick.job_id == job_id)
        assert numbers == list(range(1, len(numbers) + 1))
    assert [pick.sequence for pick in picks if not pick.done] == []


def check_bests(sessions: sessionmaker[Session]) -> None:
    """Check that the best record of each task is its fastest verified one, or a final's choice."""
    with sessions() as session:
        fastest = session.execute(
            select(MeasureRecord.task_id, func.min(MeasureRecord.latency))
            .where(MeasureRecord.verified)
            .group_by(MeasureRecord.task_id)
        ).all()
        bests = {best.task_id: best for best in session.scalars(select(BestRecord))}
        for task_id, secs in fastest:
            record = session.get_one(MeasureRecord, bests[task_id].record_id)
            assert record.verified
            assert record.error_kind is None
            assert bests[task_id].confirmed or record.latency == secs
        assert set(bests) == {task_id for task_id, _ in fastest}


@pytest.fixture(scope="session")
def control_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the faults that the workers of all modules inject."""
    return tmp_path_factory.mktemp("control") / "control.json"


@pytest.fixture(scope="module")
def control(control_file: Path) -> Iterator[Control]:
    """The faults of all workers of a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CONTROL, str(control_file))
        patch.setenv("TOY_RUN_SECS", _RUN_SECS)
        yield Control(control_file)


@pytest.fixture(scope="module")
def pair(control: Control, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyExecutor]:
    """Two builders and two devices that do not share cores with them, kept warm."""
    control.inject()
    settings = Settings(
        "", tmp_path_factory.mktemp("pair"), faulty_toy.NAME, 2, worker_sandbox="off"
    )
    devices = [LocalRunner(settings, name, shares_cores=False) for name in ("a", "b")]
    with FaultyExecutor(settings, runners=devices) as executor:
        yield executor


@pytest.fixture
def hall(pair: FaultyExecutor, control: Control, tmp_path: Path) -> Iterator[Hall]:
    """An empty database and the devices, without faults at first."""
    control.inject()
    engine = database.open_database(f"sqlite:///{tmp_path / 'tuner.db'}")
    yield Hall(database.sessions(engine), tmp_path, pair, control=control)
    engine.dispose()
    control.inject()


def workers_of(pool: Any) -> list[psutil.Process]:
    """Return the live processes of a pool."""
    workers = []
    for pid in pool.process_ids:
        with contextlib.suppress(psutil.NoSuchProcess):
            workers.append(psutil.Process(pid))
    return workers


class Repeat:
    """A thread that repeats a step while the block runs."""

    def __init__(self, step: Callable[[], None], pause_secs: Callable[[], float]) -> None:
        self._step, self._pause_secs = step, pause_secs
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.error: Exception | None = None

    def _work(self) -> None:
        try:
            while not self._stopping.wait(self._pause_secs()):
                self._step()
        except Exception as error:  # raised again where the test sees it
            self.error = error

    def __enter__(self) -> "Repeat":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self.error is not None:
            raise self.error
