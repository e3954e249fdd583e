"""In-memory states of the tasks of a coordinator, so that no decision queries the database.

A coordinator is the only one to measure for its jobs and adds what it writes to the cache. Records
of other processes, such as imports or another coordinator on the same tasks, are found twice a
second, and everything is read again from time to time.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

from sqlalchemy.orm import Session, sessionmaker

from records import jobs, measure_records
from records.errors import NoSuchRow
from records.measure_records import NewRecord, StoredRecord
from records.models import Job, Pick
from records.tasks import WeightedTask, tasks_of_job
from records.tuning.aggregates import TIMEOUTS
from records.tuning.rounds import RoundResult
from tuner.engines.base import origin_of
from tuner.tuning.tasks.snapshot import (
    EquivalentJob,
    JobSnapshot,
    make_snapshot,
    read_equivalent_jobs,
    read_states,
)
from tuner.tuning.tasks.task_profiles import TaskProfiles, task_profiles

if TYPE_CHECKING:
    from tuner.tuning.tasks.task_state import TaskState

# Interval between two looks at the records of other processes.
_CHECK_INTERVAL_SECS = 0.5
# Interval in which every job is read again, longer where that would take over 1 % of the time.
_RELOAD_INTERVAL_SECS = 60.0
_REST_RATIO = 100.0


class RoundIds(NamedTuple):
    """Ids of a pick, read once: an attribute of a row takes as long as ten of a plain object."""

    pick_id: int
    task_id: int
    job_id: int
    sequence: int

    @classmethod
    def of(cls, pick: Pick) -> Self:
        """Read the ids of a stored pick."""
        return cls(pick.id, pick.task_id, pick.job_id, pick.sequence)


@dataclass
class _JobState:
    """State of a registered job.

    Attributes:
        tasks: Tasks of its network.
        own: Trials that the job paid for, by task.
        equivalents: Other jobs whose trials count for this one.
        running: Picks of its running rounds, by id.
        profiles: Similarity groups and roofs of its tasks.
    """

    tasks: Sequence[WeightedTask]
    own: Counter[int]
    equivalents: tuple[EquivalentJob, ...]
    running: dict[int, Pick]
    profiles: TaskProfiles


class TaskStateCache:
    """States of the tasks of all active jobs; used by one thread.

    Args:
        sessions: Factory of database sessions.
        clock: Seconds by the clock of the event loop.
        write_all: Writes all changes that wait to be written; called before states are read.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        clock: Callable[[], float],
        write_all: Callable[[], None] = lambda: None,
    ) -> None:
        self._sessions = sessions
        self._clock = clock
        self._write_all = write_all
        self._states: dict[int, TaskState] = {}
        self._jobs: dict[int, _JobState] = {}
        self._n_jobs: Counter[int] = Counter()
        self._n_measured: Counter[int] = Counter()
        self._reserved: Counter[int] = Counter()
        self._standings: dict[int, jobs.JobStanding] = {}
        self._standings_read = 0.0
        self._newest = 0
        # Records that this coordinator has stored since the newest one was looked up.
        self._n_stored = 0
        self._checked = self._reload_at = 0.0
        self._to_reload: list[int] = []

    @property
    def job_ids(self) -> list[int]:
        """Ids of the registered jobs."""
        return list(self._jobs)

    def has_job(self, job_id: int) -> bool:
        """Return whether a job is registered."""
        return job_id in self._jobs

    def register_job(self, job_id: int, tasks: Sequence[WeightedTask]) -> None:
        """Read the tasks of a job, and read the jobs that share them again."""
        if not self._jobs:
            self._checked = self._clock()
            self._reload_at = self._checked + _RELOAD_INTERVAL_SECS
            with self._sessions() as session:
                self._newest, self._n_stored = measure_records.newest_id(session), 0
        task_ids = {task.task_id for task in tasks}
        sharing = self._jobs_with({task_id for task_id in task_ids if self._n_jobs[task_id]})
        self._n_jobs.update(task_ids)
        self._jobs[job_id] = _JobState(tasks, Counter(), (), {}, task_profiles(tasks))
        self.reload([*sharing, job_id])

    def unregister_job(self, job_id: int) -> None:
        """Forget a job that has ended; a second call does nothing."""
        job = self._jobs.pop(job_id, None)
        if job is None:
            return
        self._standings.pop(job_id, None)
        # The trials with which it ended count for equivalent jobs.
        self.reload(
            other_id
            for other_id, other in self._jobs.items()
            if any(equivalent.job_id == job_id for equivalent in other.equivalents)
        )
        for task in job.tasks:
            self._n_jobs[task.task_id] -= 1
            if not self._n_jobs[task.task_id]:
                del self._n_jobs[task.task_id], self._states[task.task_id]

    def job_standing(self, job_id: int, max_age_secs: float = 0.0) -> jobs.JobStanding:
        """Return the state and limits in the row of a job, read within the last seconds.

        Raises:
            NoSuchRow: If the job does not exist.
        """
        now = self._clock()
        age_secs = now - self._standings_read
        if job_id not in self._standings or not 0.0 <= age_secs <= max_age_secs:
            job_ids = list(self._jobs) if max_age_secs else [job_id]
            with self._sessions() as session:
                self._standings = jobs.standings(session, job_ids)
            self._standings_read = now
        if job_id not in self._standings:
            raise NoSuchRow(f"no job {job_id}")
        return self._standings[job_id]

    def forget_standing(self, job_id: int) -> None:
        """Read the row of a job again before its state counts, as this process has changed it."""
        self._standings.pop(job_id, None)

    def reload(self, job_ids: Iterable[int] | None = None) -> None:
        """Read the states of some jobs from the database, of all by default."""
        chosen = list(self._jobs if job_ids is None else job_ids)
        if not chosen:
            return
        # Changes that wait to be written would be lost from the cache.
        self._write_all()
        with self._sessions() as session:
            for job_id in chosen:
                job = self._jobs[job_id]
                task_ids = [task.task_id for task in job.tasks]
                self._states.update(read_states(session, task_ids))
                job.own = Counter(measure_records.own_trials(session, job_id))
                row = session.get_one(Job, job_id)
                # The peaks of the device may be known by now, and with them the roofs of the tasks.
                current = {task.task_id: task for task in tasks_of_job(session, row)}
                job.profiles = task_profiles(
                    [current.get(task.task_id, task) for task in job.tasks]
                )
                job.equivalents = read_equivalent_jobs(session, row, task_ids)

    def snapshot(self, job_id: int) -> JobSnapshot:
        """Return the task table of a registered job."""
        self._check_other_processes()
        job = self._jobs[job_id]
        equivalents = [self._with_current_trials(other) for other in job.equivalents]
        return make_snapshot(
            job.tasks, self._states, job.own, equivalents, self._reserved, job.profiles
        )

    def _with_current_trials(self, equivalent: EquivalentJob) -> EquivalentJob:
        job = self._jobs.get(equivalent.job_id)
        return equivalent if job is None else equivalent._replace(n_trials=job.own.total())

    def best_latency(self, task_id: int) -> float:
        """Return the best latency of a task in seconds; inf if nothing ran."""
        return self._states[task_id].latency

    def reserve(self, task_id: int) -> None:
        """Count a round of a task as in flight from the moment it is chosen."""
        self._reserved[task_id] += 1

    def release(self, task_id: int) -> None:
        """Take a reservation back, because the round has a trial or will never start."""
        self._reserved[task_id] -= 1
        if not self._reserved[task_id]:
            del self._reserved[task_id]

    def round_started(self, pick: Pick) -> None:
        """Note that the round of a pick runs; takes the reservation of the pick over."""
        self._jobs[pick.job_id].running[pick.id] = pick
        self._n_measured[pick.id] = self.trials_of(pick)
        # A round counts as in flight until it has a trial, which the state of its task shows.
        if self._n_measured[pick.id]:
            self.release(pick.task_id)

    def round_finished(self, pick: Pick, *, completed: bool, failed: bool = False) -> None:
        """Note that the round of a pick no longer runs; its job may have ended before."""
        if not self._n_measured.pop(pick.id, 1):
            self.release(pick.task_id)
        job = self._jobs.get(pick.job_id)
        if job is None:
            return
        job.running.pop(pick.id, None)
        state = self._states[pick.task_id]
        if completed:
            state.put(state.round_of(pick.id))
        if failed:
            state.fail(pick.id)

    def trials_in_flight(self, job_id: int) -> int:
        """Return the trials that the running rounds of a job have still to make."""
        return sum(map(self.trials_left, self._jobs[job_id].running.values()))

    def trials_left(self, pick: Pick) -> int:
        """Return the trials that a running round has still to make."""
        return max(pick.n_trials - self._n_measured[pick.id], 0)

    def trials_of(self, pick: Pick) -> int:
        """Return the trials that the round of a pick has made."""
        return self._states[pick.task_id].round_of(pick.id).n_trials

    def record_stored(
        self, round_ids: RoundIds, new: NewRecord, record: StoredRecord | None
    ) -> None:
        """Add a trial that was stored; None if the task had a record of its trace.

        The job of the pick may have ended; the trial then counts for others on its task.
        """
        pick_id, task_id, job_id, _ = round_ids
        if pick_id in self._n_measured:
            if not self._n_measured[pick_id]:
                self.release(task_id)
            self._n_measured[pick_id] += 1
        self._n_stored += record is not None
        state = self._states.get(task_id)
        if record is None or state is None:
            return
        state.put(_with_trial(state.round_of(pick_id), new, record))
        if record.best and record.latency is not None:
            state.latency = record.latency
            state.origin = origin_of(new.trace, new.origin)
        if job_id in self._jobs:
            self._jobs[job_id].own[task_id] += 1

    def _jobs_with(self, task_ids: Collection[int]) -> list[int]:
        if not task_ids:
            return []
        return [
            job_id
            for job_id, job in self._jobs.items()
            if any(task.task_id in task_ids for task in job.tasks)
        ]

    def _check_other_processes(self) -> None:
        """Read the jobs again whose tasks have new records of other processes, if it is time."""
        now = self._clock()
        # The clock of a run may start at any time, even before that of the run before.
        self._checked = min(self._checked, now)
        self._reload_at = min(self._reload_at, now + _RELOAD_INTERVAL_SECS)
        self._reload_next(now)
        if now - self._checked < _CHECK_INTERVAL_SECS:
            return
        self._checked = now
        with self._sessions() as session:
            newest = measure_records.newest_id(session)
            # Where every id is that of a record of this coordinator, there is nothing to look for.
            foreign = (
                []
                if newest - self._newest == self._n_stored
                else measure_records.foreign_since(session, self._newest, list(self._jobs))
            )
        self._newest, self._n_stored = newest, 0
        self.reload(self._jobs_with({record.task_id for record in foreign} & set(self._states)))

    def _reload_next(self, now: float) -> None:
        """Read one job again, if it is time; all have their turn in the reload interval."""
        if now < self._reload_at:
            return
        if not self._to_reload:
            self._to_reload = list(self._jobs)
        job_id = self._to_reload.pop()
        if job_id in self._jobs:
            self.reload([job_id])
        secs = self._clock() - now
        self._reload_at = now + max(_RELOAD_INTERVAL_SECS / len(self._jobs), _REST_RATIO * secs)


def _with_trial(before: RoundResult, new: NewRecord, record: StoredRecord) -> RoundResult:
    """Return the result of a round with one trial more, as the totals in its row have it."""
    pick_id, n_trials, n_failed, best_secs, secs, run_secs, n_timeouts = before
    latency = record.latency
    if new.verified and latency is not None:
        best_secs = min(best_secs, latency)
    return RoundResult(
        pick_id,
        n_trials + 1,
        n_failed + (new.error_kind is not None),
        best_secs,
        secs,
        run_secs + (latency or 0.0),
        n_timeouts + (new.error_kind in TIMEOUTS),
    )
