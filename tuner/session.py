"""The loop that tunes one network: choose, propose, build, run, verify, record, learn.

The session holds no state that the database does not: after a kill, a new
session on the same job finishes the round that was open, proposing what it
would have proposed, and goes on with the pick it would have made.
"""

import hashlib
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, get_args

from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from records import events, jobs, measures, picks, tasks
from records.models import Job, JobState, MeasureRecord, Pick
from scheduler import allocators
from scheduler.allocator import GreedyAllocator
from scheduler.budget import Budget
from scheduler.outlook import Outlook, look_ahead, trials_until
from tuner import finals
from tuner.engines.base import Candidate, Measured, RunResult
from tuner.errors import RequestError, WorkError
from tuner.executors.local import LocalExecutor
from tuner.goals import objective_of
from tuner.learning import Learner
from tuner.measuring import Measurer, Subject
from tuner.overview import Overview, read_overview
from tuner.preparation import Prepared
from tuner.searching import Round, search
from tuner.tune_options import Status, TuneOptions, Watcher, round_size

_MOST_FAILED_SEARCHES = 3

_LOG = logging.getLogger(__name__)


class _Asked(NamedTuple):
    """What may change of a job while it runs."""

    trials: int | None
    secs: float | None
    least_gain_secs: float | None


class TuningSession:
    """Tunes the tasks of one prepared network with the workers of this machine.

    A coordinator calls start, then step until it returns False, then finish, and rest at the
    end whatever happened. Every finished trial is in the database at any time.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        workers: LocalExecutor,
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
        self._objective = objective_of(options.goal, prepared)
        self._greedy = options.scheduler or allocators.default_settings(options.allocator)
        self._allocator = allocators.make_allocator(
            options.allocator, self._objective, options.seed, self._greedy
        )
        self._budget = options.budget
        self._least_gain_secs = options.least_gain_secs
        self._asked = _Asked(None, None, None)
        self._outlook: Outlook | None = None
        self._trials_to_stop: int | None = None
        self._n_trials = options.trials_per_round or round_size(options.budget, prepared)
        self._n_failed_searches = 0
        self.first_record_at: float | None = None
        self.job_id = self._open_job()
        self._clock: float | None = None

    def start(self) -> None:
        """Mark the job as running; steps may follow.

        A job of the service that somebody stopped meanwhile stays what it is: steps do nothing.
        """
        takes: tuple[JobState, ...] = get_args(JobState)
        if self._options.submission:
            takes = ("queued", "running")
        with self._sessions.begin() as session:
            jobs.set_state(session, self.job_id, "running", only_from=takes)

    def rest(self, state: JobState, message: str | None = None) -> None:
        """End a run in a state; a job that is done, or that others stopped, stays what it is."""
        self._measurer.close()
        with self._sessions.begin() as session:
            jobs.set_state(session, self.job_id, state, message, only_from=("running",))

    def step(self) -> bool:
        """Run one round; False if there is nothing more to do, or somebody stopped the job.

        Raises:
            WorkError: If searches keep failing.
        """
        with self._clocked():
            if not self._may_go_on():
                return False
            pick = self._next_pick()
            if pick is None:
                return False
            self._run_round(pick)
        return True

    def finish(self) -> bool:
        """Confirm the winners and mark the job as done.

        A job that somebody stopped stays stopped.

        Returns:
            False if more was asked of the job since the step that found nothing left to do.

        Raises:
            WorkError: If no candidate of any task could be measured.
        """
        decided = self._asked
        with self._clocked():
            if not self._may_go_on():
                return True
            if self._asked != decided:
                return False
            self._confirm_winners()
        spent = self.overview().spent_trials(self._budget.trials)
        with self._sessions.begin() as session:
            job = jobs.locked(session, self.job_id)
            if job.state == "running" and _asked_of(job) != decided:
                return False
            if jobs.set_state(session, self.job_id, "done", only_from=("running",)):
                jobs.record_reached_trials(session, self.job_id, spent)
        return True

    @contextmanager
    def _clocked(self) -> Iterator[None]:
        """Charge the job for the time inside, and for no time that others had the device."""
        self._clock = time.monotonic()
        try:
            yield
        finally:
            self._spend_time()
            self._clock = None

    def _may_go_on(self) -> bool:
        """Look up what others want of the job: its state, and limits that were changed."""
        with self._sessions() as session:
            job = session.get_one(Job, self.job_id)
        asked, before, mine = _asked_of(job), self._asked, self._budget
        if asked != before:
            self._asked = asked
            self._budget = Budget(
                mine.trials if asked.trials == before.trials else asked.trials,
                mine.secs if asked.secs == before.secs else asked.secs,
            )
            if asked.least_gain_secs != before.least_gain_secs:
                self._least_gain_secs = asked.least_gain_secs
        return job.state == "running"

    def _open_job(self) -> int:
        budget = self._options.budget
        with self._sessions.begin() as session:
            self._check_comparable(session)
            goal = self._options.goal
            job = jobs.open_job(
                session,
                jobs.NewJob(
                    network_id=self._prepared.network_id,
                    target_id=self._prepared.target_id,
                    objective=goal.objective,
                    priority=self._options.priority,
                    seed=self._options.seed,
                    budget_trials=budget.trials,
                    budget_secs=budget.secs,
                    settings={
                        "allocator": self._options.allocator,
                        "goal": goal.options(),
                        "evaluator": asdict(self._options.evaluator),
                        "search": asdict(self._options.search),
                        "scheduler": asdict(self._greedy),
                    },
                    submission=self._options.submission,
                ),
            )
            self._asked = _asked_of(job)
            if self._options.submission:
                # Its row is what was asked for, which may have grown since we read it.
                self._budget = Budget(job.budget_trials, job.budget_secs)
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
        overview = self.overview()
        spent = overview.spent_trials(self._budget.trials)
        pick = self._open_pick()
        if self._budget.exhausted(spent, self._spent_secs()):
            if pick is not None and pick.n_measured >= pick.n_trials:
                self._end_round(pick)
            return None
        if pick is not None:
            return pick
        self._outlook = self._look_ahead(overview)
        if self._saves_too_little():
            return None
        self._tell("choosing", overview)
        return self._pick(overview, self._budget.round_size(self._n_trials, spent))

    def _open_pick(self) -> Pick | None:
        """Return the pick whose round was not completed, if there is one.

        After an upgrade, or on another device, the network may have other tasks: a round of one
        that it has no more is given up.
        """
        task_ids = {task.task_id for task in self._prepared.tasks}
        while True:
            with self._sessions() as session:
                pick = picks.open_pick(session, self.job_id)
            if pick is None or pick.task_id in task_ids:
                return pick
            self._end_round(pick, failed="its task is not of this network any more")

    def _look_ahead(self, overview: Overview) -> Outlook | None:
        """Forecast the next minute; None before every task had its first round."""
        table = overview.table
        if table.unseen.any() or not table.measured.any():
            return None
        secs, n_trials = self._spent_secs(), sum(overview.own)
        a_minute = round(60.0 * n_trials / secs) if secs > 0.0 else 0
        weight = self._objective.at(table).gradient(table.best_secs)
        step = max(a_minute, self._n_trials)
        least = self._least_gain_secs
        if least is not None:
            self._trials_to_stop = trials_until(table, weight, step, least)
        return look_ahead(table, weight, step)

    def _saves_too_little(self) -> bool:
        least = self._least_gain_secs
        return least is not None and self._outlook is not None and self._outlook.saving < least

    def _pick(self, overview: Overview, n_trials: int) -> Pick | None:
        with self._sessions.begin() as session:
            sequence = picks.count_picks(session, self.job_id)
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
        started = time.monotonic()
        with self._sessions() as session:
            ir = tasks.workload_ir(session, pick.task_id)
            before = measures.measured(session, pick.task_id, pick.id)
            known = {record.trace_hash for record in measures.records_of_pick(session, pick.id)}
        overview = self.overview()
        row = next(row for row in overview.rows if row.task_id == pick.task_id)
        self._tell("searching", overview, row.task_id)
        try:
            proposed = self._propose(pick, ir, before)
        except WorkError as error:
            self._give_up_round(pick, error)
            return
        self._n_failed_searches = 0
        left = self._budget.round_size(pick.n_trials, overview.spent_trials(self._budget.trials))
        candidates = [c for c in proposed if _short_hash(c.trace) not in known][:left]
        subject = Subject(pick.task_id, row.workload, ir, row.latency)
        self._tell(f"measuring {len(candidates)} candidates", overview, row.task_id, quiet=True)
        for candidate, result in self._measurer.measure(subject, candidates):
            self._record(pick, candidate, result)
        self._end_round(pick, time.monotonic() - started)
        self._spend_time()

    def _end_round(
        self, pick: Pick, secs: float | None = None, *, failed: str | None = None
    ) -> None:
        """Complete a round with what it came to: both are stored, or neither."""
        overview = self.overview()
        with self._sessions.begin() as session:
            if failed is None:
                picks.finish_pick(session, pick.id, secs)
            else:
                picks.fail_pick(session, pick.id, failed)
            picks.set_outcome(
                session,
                pick.id,
                total_secs=overview.total_secs,
                spent_trials=overview.spent_trials(self._budget.trials),
                job_trials=sum(overview.own),
            )

    def _give_up_round(self, pick: Pick, error: WorkError) -> None:
        """End a round whose search failed; the task is tried again later.

        Raises:
            WorkError: If that happened to several rounds in a row.
        """
        self._n_failed_searches += 1
        self._end_round(pick, failed=str(error))
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
            record = measures.add_record(
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
            record_id = None if record is None else record.id
        outcome: dict[str, object] = {"error": result.error_kind}
        if record is not None and record.latency is not None:
            outcome = {"latency_secs": record.latency}
        _LOG.info(
            "trial",
            extra={"job": self.job_id, "pick": pick.sequence, "record": record_id, **outcome},
        )

    def _confirm_winners(self) -> None:
        overview = self.overview()
        if not math.isfinite(overview.total_secs):
            self._explain_failure(overview)
        finals.confirm(
            self._sessions,
            self._measurer,
            overview,
            lambda row: self._tell("confirming the winners", overview, row.task_id, quiet=True),
            self._prepared.n_bytes,
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

    def overview(self) -> Overview:
        """Read the table as the records have it."""
        with self._sessions() as session:
            job = session.get(Job, self.job_id)
            return read_overview(session, self._prepared.tasks, job)

    def _tell(
        self, phase: str, overview: Overview, current: int | None = None, *, quiet: bool = False
    ) -> None:
        spent = overview.spent_trials(self._budget.trials)
        self._store_status(phase, overview, current, spent)
        self._watcher(
            Status(
                phase,
                overview,
                self._budget,
                spent,
                self._spent_secs(),
                current,
                quiet,
                self._outlook,
                self._trials_to_stop,
            )
        )

    def _store_status(
        self, phase: str, overview: Overview, current: int | None, spent_trials: int
    ) -> None:
        gains = None
        if isinstance(self._allocator, GreedyAllocator) and current is None:
            values = self._allocator.gains(overview.table, self._n_trials)
            pairs = zip(overview.rows, values.tolist(), strict=True)
            gains = {str(row.task_id): gain for row, gain in pairs}
        with self._sessions.begin() as session:
            events.set_status(
                session,
                self.job_id,
                phase=phase,
                task_id=current,
                gains=gains,
                total_secs=overview.total_secs,
                spent_trials=spent_trials,
                outlook=None if self._outlook is None else asdict(self._outlook),
            )

    def _spent_secs(self) -> float:
        with self._sessions() as session:
            spent = session.get_one(Job, self.job_id).spent_secs
        return spent if self._clock is None else spent + time.monotonic() - self._clock

    def _spend_time(self) -> None:
        """Store what passed since the clock was last read."""
        if self._clock is None:
            return
        now = time.monotonic()
        with self._sessions.begin() as session:
            jobs.add_spent_secs(session, self.job_id, now - self._clock)
        self._clock = now


def _asked_of(job: Job) -> _Asked:
    least = (job.request or {}).get("least_gain_secs")
    return _Asked(job.budget_trials, job.budget_secs, least)


def _last_line(text: str | None) -> str:
    return ((text or "").strip().splitlines() or ["no reason given"])[-1]


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
