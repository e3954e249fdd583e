"""Networks of toy tasks in a database, without a model file."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from records import database, networks, targets, tasks
from records.models import BestRecord, Job, MeasureRecord, Pick
from records.picks import NewPick
from tests.engines import toy
from tuner.engines.base import ExtractedTask, ModelFile
from tuner.executors.local import LocalExecutor
from tuner.jobs.preparation import Prepared
from tuner.jobs.spec import TuneSpec
from tuner.library.manifest import Source
from tuner.networks.base import LoadedModel
from tuner.tuning import event_loop
from tuner.tuning.context import TuningContext
from tuner.tuning.coordinator import Coordinator
from tuner.tuning.job.session_options import SessionOptions
from tuner.tuning.session import TuningSession
from tuner.tuning.status import TuningStatus
from tuner.tuning.tasks.snapshot import JobSnapshot


@dataclass(frozen=True)
class Trial:
    """The identity of one spent trial in a sequence."""

    task_id: int
    trace_hash: str
    n_trials: int


@dataclass
class Workshop:
    """A database, a data directory and toy workers."""

    sessions: sessionmaker[Session]
    folder: Path
    workers: LocalExecutor
    _context: TuningContext | None = None

    @property
    def context(self) -> TuningContext:
        """The tuning context of the next run."""
        if self._context is None:
            self._context = TuningContext(self.sessions, self.workers, self.folder)
        return self._context

    def run(self, *sessions: TuningSession, **options: Any) -> Coordinator:
        """Run sessions of this workshop together, to the end of all."""
        coordinator = Coordinator(self.context, **options)
        try:
            coordinator.run(sessions)
        finally:
            self._context = None
        return coordinator

    def run_alone(self, session: TuningSession) -> JobSnapshot:
        """Run one job to its end, and return its table.

        Raises:
            TunerError: If it failed.
        """
        for error in self.run(session).failures.values():
            raise error
        return session.snapshot()

    def prepare(
        self, name: str = "net", batch: int = 1, extracted: Sequence[ExtractedTask] | None = None
    ) -> Prepared:
        """Store a network of the toy engine, or one of given tasks."""
        inputs = {"data": ((batch, 4), "float32")}
        file = ModelFile("", "onnx", inputs)
        if extracted is None:
            extracted = toy.extract(file, toy.SPEC).tasks
        sha256 = hashlib.sha256(name.encode()).hexdigest()
        with self.sessions.begin() as session:
            network_id = networks.ensure_network(session, sha256, name, {}).id
            target = toy.describe_target("llvm")
            target_id = targets.ensure_target(session, target.spec, dict(target.device)).id
            rows = [(_workload(task), task.weight) for task in extracted]
            n_calls = sum(task.weight for task in extracted)
            networks.record_extraction(session, network_id, target_id, rows, n_calls)
            weighted = tuple(tasks.weighted_tasks(session, network_id, target_id))
        model = LoadedModel(name, sha256, file, {"y": ((1,), "float32")}, (), Source(name))
        return Prepared(model, target, network_id, target_id, weighted, n_calls, ())

    def session(
        self,
        prepared: Prepared,
        trials: int | None = None,
        on_status: Callable[[TuningStatus], None] = lambda _status: None,
        **options: Any,
    ) -> TuningSession:
        """Open a session with a budget of trials and other options of a job or a session."""
        own = {name: options.pop(name) for name in ("search", "scheduler") if name in options}
        spec = TuneSpec(**{"cost_model": "random", "trials": trials, **options})
        return TuningSession(self.context, prepared, SessionOptions(spec, **own), on_status)

    def tune(self, prepared: Prepared, trials: int | None = None, **options: Any) -> JobSnapshot:
        """Run a session to its end."""
        return self.run_alone(self.session(prepared, trials, **options))

    def run_round(self, session: TuningSession) -> None:
        """Run one round of a session that was started."""

        async def work() -> None:
            device = await self.context.device_for(session.target)
            pick = session.next_pick()
            assert pick is not None
            if isinstance(pick, NewPick):
                (pick,) = self.context.store_picks([pick])
            session.on_round_started(pick)
            await session.run_round(pick, device)
            self.context.record_writer.flush()

        event_loop.run(work())

    def trials(self) -> list[Trial]:
        """Every record, in the order of its storing."""
        return trials_of(self.sessions)

    def job(self, job_id: int = 1) -> Job:
        """Read a job."""
        with self.sessions() as session:
            return session.get_one(Job, job_id)


def trials_of(sessions: sessionmaker[Session]) -> list[Trial]:
    """Return every record of a database with the size of the round that paid for it."""
    with sessions() as session:
        rows = session.execute(
            select(MeasureRecord.task_id, MeasureRecord.trace_hash, Pick.n_trials)
            .join(Pick, Pick.id == MeasureRecord.pick_id)
            .order_by(MeasureRecord.id)
        )
        return [Trial(*row) for row in rows]


def picks_of(sessions: sessionmaker[Session]) -> list[tuple[int, int, int, bool]]:
    """Return sequence number, task, size and state of every pick of a database."""
    with sessions() as session:
        rows = session.execute(
            select(Pick.sequence, Pick.task_id, Pick.n_trials, Pick.done).order_by(Pick.id)
        )
        return [(row[0], row[1], row[2], row[3]) for row in rows]


def bests_of(sessions: sessionmaker[Session]) -> list[tuple[int, str, float, bool]]:
    """Return task, trace, latency and confirmation of every best record of a database."""
    with sessions() as session:
        rows = session.execute(
            select(
                BestRecord.task_id,
                MeasureRecord.trace_hash,
                BestRecord.latency,
                BestRecord.confirmed,
            )
            .join(MeasureRecord, MeasureRecord.id == BestRecord.record_id)
            .order_by(BestRecord.task_id)
        )
        return [(row[0], row[1], row[2], row[3]) for row in rows]


def open_sessions(url: str) -> sessionmaker[Session]:
    """Open a database as a command does."""
    return database.sessions(database.open_database(url))


def _workload(task: ExtractedTask) -> tasks.NewWorkload:
    return tasks.NewWorkload(
        hash=task.workload, engine=toy.NAME, ir=task.ir, flop=task.flop, name=task.name
    )
