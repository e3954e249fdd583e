"""The loop that tunes one network: choose, propose, build, run, verify, record, learn.

The session holds no state that the database does not: after a kill, a new
session on the same job finishes the round that was open, proposing what it
would have proposed, and goes on with the pick it would have made.
"""

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from records import jobs, measures, picks, tasks
from records.models import Job, JobState, MeasureRecord, Pick
from scheduler import budget as budgets
from scheduler import objectives
from scheduler.allocator import GradientAllocator
from scheduler.budget import Budget
from scheduler.gradient import GradientSettings
from tuner import finals
from tuner.engines.base import Candidate, EvaluatorSettings, Measured, RunResult
from tuner.errors import RequestError, WorkError
from tuner.learning import Learner
from tuner.measuring import Measurer, Subject
from tuner.overview import Overview, read_overview
from tuner.preparation import Prepared
from tuner.searching import Round, SearchSettings, search
from tuner.workers import Workers

_MOST_FAILED_SEARCHES = 3
# Trials of a round when only time limits the job.
_TIMED_ROUND = 8


@dataclass(frozen=True)
class TuneOptions:
    """What a tuning run may spend and how it works.

    Attributes:
        budget: Trials, seconds, or both; what was spent before counts.
        trials_per_round: Trials one pick buys; None chooses by budget and tasks.
        objective: Name of the objective.
        seed: Seeds the search and the scheduler.
        scheduler: Parameters of the gradient.
        evaluator: How candidates are timed.
        search: How hard a round searches.
        cost_model: Kind of cost model.
        build_timeout_secs: A build that takes longer is killed.
    """

    budget: Budget
    trials_per_round: int | None = None
    objective: str = "weighted_sum"
    seed: int = 0
    scheduler: GradientSettings = field(default_factory=GradientSettings)
    evaluator: EvaluatorSettings = field(default_factory=EvaluatorSettings)
    search: SearchSettings = field(default_factory=SearchSettings)
    cost_model: str = "xgb-ranking"
    build_timeout_secs: float = 60.0


@dataclass(frozen=True)
class Status:
    """What a watcher of a session is told.

    Attributes:
        phase: What goes on, for people.
        overview: The table as of the last committed record.
        budget: Of this run.
        spent_trials: Trials that count against the budget.
        spent_secs: Seconds this job has spent, all its runs together.
        current: Task id of the running round, if any.
        quiet: Whether a candidate is being timed right now: do nothing that takes a core.
    """

    phase: str
    overview: Overview
    budget: Budget
    spent_trials: int
    spent_secs: float
    current: int | None = None
    quiet: bool = False


Watcher = Callable[[Status], None]


class TuningSession:
    """Tunes the tasks of one prepared network with the workers of this machine."""

    def __init__(
        self,
        sessions: sessionmaker[Session],
        workers: Workers,
        prepared: Prepared,
        options: TuneOptions,
        data_dir: Path,
        watcher: Watcher,
    ) -> None:
        self._sessions = sessions
        self._workers = workers
        self._prepared = prepared
        self._options = options
        self._watcher = watcher
        self._learner = Learner(
            sessions, workers, prepared.target_id, options.cost_model, options.seed
        )
        self._measurer = Measurer(
            workers,
            prepared.target.spec,
            options.evaluator,
            data_dir,
            options.build_timeout_secs,
        )
        self._allocator = GradientAllocator(
            options.scheduler,
            objectives.make_objective(
                options.objective, np.array([task.weight for task in prepared.tasks])
            ),
            options.seed,
        )
        self._n_trials = options.trials_per_round or _round_size(options.budget, prepared)
        self._n_failed_searches = 0
        self.first_record_at: float | None = None
        self.job_id = self._open_job()
        self._clock = time.monotonic()

    def run(self) -> Overview:
        """Spend the budget, then confirm the winners; returns the final table.

        Whatever interrupts it, every finished trial is in the database.

        Raises:
            WorkError: If no candidate of any task can be measured, or searches keep failing.
        """
        state: JobState = "paused"
        message = None
        try:
            self._set_state("running")
            while (pick := self._next_pick()) is not None:
                self._run_round(pick)
            self._confirm_winners()
            state = "done"
        except WorkError as error:
            state, message = "failed", str(error)
            raise
        finally:
            self._measurer.close()
            self._spend_time()
            self._set_state(state, message)
        return self._overview()

    def _open_job(self) -> int:
        budget = self._options.budget
        with self._sessions.begin() as session:
            self._check_comparable(session)
            job = jobs.open_job(
                session,
                jobs.NewJob(
                    network_id=self._prepared.network_id,
                    target_id=self._prepared.target_id,
                    objective=self._options.objective,
                    seed=self._options.seed,
                    budget_trials=budget.trials,
                    budget_secs=budget.secs,
                    settings={
                        name: asdict(getattr(self._options, name))
                        for name in ("evaluator", "search", "scheduler")
                    },
                ),
            )
            return job.id

    def _check_comparable(self, session: Session) -> None:
        """Refuse to mix latencies that were measured in ways that do not compare.

        Raises:
            RequestError: If the records of this target were timed with other settings.
        """
        wanted = asdict(self._options.evaluator)
        for settings in session.scalars(
            select(Job.settings).where(Job.target_id == self._prepared.target_id)
        ):
            before = settings.get("evaluator", wanted)
            for name in ("cache_flush", "number"):
                if before.get(name) != wanted[name]:
                    raise RequestError(
                        f"the records of this target were timed with {name}={before.get(name)}, "
                        f"not {wanted[name]}, and would not compare; use another --database"
                    )

    def _next_pick(self) -> Pick | None:
        """Return the open pick of a killed run, else make the next; None when done."""
        overview = self._overview()
        spent = overview.spent_trials(self._options.budget.trials)
        if self._options.budget.exhausted(spent, self._spent_secs()):
            return None
        with self._sessions() as session:
            pick = picks.open_pick(session, self.job_id)
        if pick is not None:
            return pick
        self._tell("choosing", overview)
        return self._pick(overview, self._options.budget.round_size(self._n_trials, spent))

    def _pick(self, overview: Overview, n_trials: int) -> Pick | None:
        with self._sessions.begin() as session:
            sequence = len(picks.picks_of(session, self.job_id))
            decision = self._allocator.choose(overview.table, sequence=sequence, n_trials=n_trials)
            if decision is None:
                return None
            newest = session.scalar(select(func.max(MeasureRecord.id))) or 0
            return picks.add_pick(
                session,
                self.job_id,
                overview.rows[decision.task].task_id,
                decision.n_trials,
                {"reason": decision.reason, "newest_record": newest, **decision.terms},
            )

    def _run_round(self, pick: Pick) -> None:
        with self._sessions() as session:
            ir = tasks.workload_ir(session, pick.task_id)
            before = measures.measured(session, pick.task_id, pick.id)
            known = {record.trace_hash for record in measures.records_of_pick(session, pick.id)}
        overview = self._overview()
        row = next(row for row in overview.rows if row.task_id == pick.task_id)
        self._tell("searching", overview, row.task_id)
        try:
            proposed = self._propose(pick, ir, before)
        except WorkError as error:
            self._give_up_round(pick, error)
            return
        self._n_failed_searches = 0
        left = self._options.budget.round_size(
            pick.n_trials, overview.spent_trials(self._options.budget.trials)
        )
        candidates = [c for c in proposed if _short_hash(c.trace) not in known][:left]
        subject = Subject(pick.task_id, row.workload, ir, row.latency)
        self._tell(f"measuring {len(candidates)} candidates", overview, row.task_id, quiet=True)
        for candidate, result in self._measurer.measure(subject, candidates):
            self._record(pick, candidate, result)
        with self._sessions.begin() as session:
            picks.finish_pick(session, pick.id)
        self._spend_time()

    def _give_up_round(self, pick: Pick, error: WorkError) -> None:
        """End a round whose search failed; the task is tried again later.

        Raises:
            WorkError: If that happened to several rounds in a row.
        """
        self._n_failed_searches += 1
        with self._sessions.begin() as session:
            picks.fail_pick(session, pick.id, str(error))
        self._spend_time()
        if self._n_failed_searches >= _MOST_FAILED_SEARCHES:
            raise WorkError(f"{self._n_failed_searches} searches in a row failed: {error}")

    def _propose(self, pick: Pick, ir: bytes, before: list[measures.Measured]) -> list[Candidate]:
        newest = int(pick.terms["newest_record"])
        wanted = Round(
            ir=ir,
            target=self._prepared.target.spec,
            measured=tuple(
                Measured(record.trace, record.module_hash or "", record.latency)
                for record in before
            ),
            cost_model=self._learner.model(newest + 1),
            n_candidates=pick.n_trials,
            seeds=(self._options.seed, pick.sequence),
        )
        return search(self._workers, self._options.search, wanted)

    def _record(self, pick: Pick, candidate: Candidate, result: RunResult) -> None:
        self.first_record_at = self.first_record_at or time.monotonic()
        with self._sessions.begin() as session:
            measures.add_record(
                session,
                measures.NewRecord(
                    task_id=pick.task_id,
                    pick_id=pick.id,
                    trace=candidate.trace,
                    trace_hash=_short_hash(candidate.trace),
                    module_hash=candidate.module_hash,
                    features=candidate.features,
                    run_secs=result.run_secs,
                    error_kind=result.error_kind,
                    error_text=result.error_text or None,
                    max_error=result.max_error,
                    verified=result.run_secs is not None,
                    worker="local",
                ),
            )

    def _confirm_winners(self) -> None:
        overview = self._overview()
        if not math.isfinite(overview.total_secs):
            self._explain_failure(overview)
        finals.confirm(
            self._sessions,
            self._measurer,
            overview,
            lambda row: self._tell("confirming the winners", overview, row.task_id, quiet=True),
        )

    def _explain_failure(self, overview: Overview) -> None:
        """A task that was tried and never ran is a failure; one the budget did not reach is not."""
        tried = [row for row in overview.rows if row.n_trials and not math.isfinite(row.latency)]
        if tried and len(tried) == sum(1 for row in overview.rows if row.n_trials):
            with self._sessions() as session:
                record = session.scalars(
                    select(MeasureRecord)
                    .where(MeasureRecord.task_id == tried[0].task_id)
                    .order_by(MeasureRecord.id.desc())
                    .limit(1)
                ).one()
            raise WorkError(
                f"no candidate of any task could be measured; the last one failed with "
                f"{record.error_kind}: {_last_line(record.error_text)}"
            )

    def _overview(self) -> Overview:
        with self._sessions() as session:
            job = session.get(Job, self.job_id)
            return read_overview(
                session, self._prepared.tasks, job, self._options.scheduler.backward_window
            )

    def _tell(
        self, phase: str, overview: Overview, current: int | None = None, *, quiet: bool = False
    ) -> None:
        spent = overview.spent_trials(self._options.budget.trials)
        self._watcher(
            Status(phase, overview, self._options.budget, spent, self._spent_secs(), current, quiet)
        )

    def _spent_secs(self) -> float:
        with self._sessions() as session:
            job = session.get_one(Job, self.job_id)
            return job.spent_secs + time.monotonic() - self._clock

    def _spend_time(self) -> None:
        now = time.monotonic()
        with self._sessions.begin() as session:
            jobs.add_spent_secs(session, self.job_id, now - self._clock)
        self._clock = now

    def _set_state(self, state: JobState, message: str | None = None) -> None:
        with self._sessions.begin() as session:
            jobs.set_state(session, self.job_id, state, message)


def _round_size(budget: Budget, prepared: Prepared) -> int:
    if budget.trials is None:
        return _TIMED_ROUND
    n_tasks = len(prepared.tasks)
    # A budget of few trials a task reaches every task with smaller rounds.
    most = max(budget.trials // n_tasks, 1)
    return min(budgets.default_trials_per_round(budget.trials, n_tasks), most)


def _last_line(text: str | None) -> str:
    return ((text or "").strip().splitlines() or ["no reason given"])[-1]


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def make_budget(trials: int | None, secs: float | None) -> Budget:
    """Build a budget from what a user asked for.

    Raises:
        RequestError: If a limit is zero or negative.
    """
    try:
        return Budget(trials, secs)
    except ValueError as error:
        raise RequestError(f"bad budget: {error}") from error
