"""What a coordinator knows of its tasks without asking the database at every step.

It is the only one that measures for its jobs, so that what it wrote is what there is. What other
processes add meanwhile (imports, another coordinator on the same tasks) is found now and then.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session, sessionmaker

from records import jobs, measure_records
from records.aggregates import RecordTotals
from records.errors import NoSuchRow
from records.measure_records import NewRecord, StoredRecord
from records.models import Job, Pick
from records.rounds import RoundResult
from records.tasks import WeightedTask
from tuner.tuning.snapshot import EquivalentJob, JobSnapshot, make_snapshot, read_states, read_twins

if TYPE_CHECKING:
    from tuner.tuning.task_state import TaskState

# Others are looked for so often, and everything is read anew so often, where that is not too much.
_LOOK_SECS = 0.5
_RELOAD_SECS = 60.0
_REST_PER_RELOAD = 100.0


@dataclass
class _Account:
    """What a job paid for, by task, jobs that count for it, and its rounds under way."""

    tasks: Sequence[WeightedTask]
    own: Counter[int]
    twins: tuple[EquivalentJob, ...]
    flying: dict[int, Pick]


class TaskStateCache:
    """The tasks of all jobs under way; used by one thread."""

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
        self._accounts: dict[int, _Account] = {}
        self._users: Counter[int] = Counter()
        self._measured: Counter[int] = Counter()
        self._starting: Counter[int] = Counter()
        self._standings: dict[int, jobs.JobStanding] = {}
        self._asked = 0.0
        self._newest = 0
        self._looked = self._reload_at = 0.0
        self._to_reload: list[int] = []

    def register_job(self, job_id: int, tasks: Sequence[WeightedTask]) -> None:
        """Read what there is to know of a job; jobs that share its tasks are read anew."""
        if not self._accounts:
            self._looked = self._clock()
            self._reload_at = self._looked + _RELOAD_SECS
            with self._sessions() as session:
                self._newest = measure_records.newest_id(session)
        task_ids = {task.task_id for task in tasks}
        sharing = self._users_of({i for i in task_ids if self._users[i]})
        self._users.update(task_ids)
        self._accounts[job_id] = _Account(tasks, Counter(), (), {})
        self.reload([*sharing, job_id])

    @property
    def job_ids(self) -> list[int]:
        """The jobs under way."""
        return list(self._accounts)

    def has_job(self, job_id: int) -> bool:
        """Whether a job is under way."""
        return job_id in self._accounts

    def unregister_job(self, job_id: int) -> None:
        """Forget a job that is not under way any more."""
        account = self._accounts.pop(job_id, None)
        if account is None:
            return
        self._standings.pop(job_id, None)
        # What it ended with counts for those on the same tasks.
        self.reload(
            other
            for other, each in self._accounts.items()
            if any(twin.job_id == job_id for twin in each.twins)
        )
        for task in account.tasks:
            self._users[task.task_id] -= 1
            if not self._users[task.task_id]:
                del self._users[task.task_id], self._states[task.task_id]

    def job_standing(self, job_id: int, max_age_secs: float = 0.0) -> jobs.JobStanding:
        """Return what others want of a job, as it was so many seconds ago at most.

        Raises:
            NoSuchRow: If there is no such job.
        """
        now = self._clock()
        if job_id not in self._standings or not 0.0 <= now - self._asked <= max_age_secs:
            wanted = list(self._accounts) if max_age_secs else [job_id]
            with self._sessions() as session:
                self._standings = jobs.standings(session, wanted)
            self._asked = now
        if job_id not in self._standings:
            raise NoSuchRow(f"no job {job_id}")
        return self._standings[job_id]

    def reload(self, job_ids: Iterable[int] | None = None) -> None:
        """Read everything anew that concerns some jobs; all by default."""
        chosen = list(self._accounts if job_ids is None else job_ids)
        if not chosen:
            return
        # What was told and is not written yet would be forgotten.
        self._write_all()
        with self._sessions() as session:
            for job_id in chosen:
                self._read(session, job_id, self._accounts[job_id])

    def _read(self, session: Session, job_id: int, account: _Account) -> None:
        task_ids = [task.task_id for task in account.tasks]
        self._states.update(read_states(session, task_ids))
        account.own = Counter(measure_records.own_trials(session, job_id))
        account.twins = read_twins(session, session.get_one(Job, job_id), task_ids)

    def snapshot(self, job_id: int) -> JobSnapshot:
        """Return the table of a job."""
        self._look()
        account = self._accounts[job_id]
        twins = [self._as_of_now(twin) for twin in account.twins]
        return make_snapshot(account.tasks, self._states, account.own, twins, self._starting)

    def _as_of_now(self, twin: EquivalentJob) -> EquivalentJob:
        account = self._accounts.get(twin.job_id)
        return twin if account is None else twin._replace(n_trials=account.own.total())

    def best_latency(self, task_id: int) -> float:
        """Return the best latency of a task, seconds; inf if there is none."""
        return self._states[task_id].latency

    def reserve(self, task_id: int) -> None:
        """Count a round of a task as in flight from the moment it is chosen."""
        self._starting[task_id] += 1

    def release(self, task_id: int) -> None:
        """Take a reservation back, because the round has a trial or will never start."""
        self._starting[task_id] -= 1
        if not self._starting[task_id]:
            del self._starting[task_id]

    def round_started(self, pick: Pick) -> None:
        """Note that the round of a pick runs; takes the reservation of the pick over."""
        self._accounts[pick.job_id].flying[pick.id] = pick
        self._measured[pick.id] = self._states[pick.task_id].round_of(pick.id).n_trials
        # A round counts as in flight until it has a trial, which the task's state shows itself.
        if self._measured[pick.id]:
            self.release(pick.task_id)

    def round_finished(self, pick: Pick, *, completed: bool, failed: bool = False) -> None:
        """Note that the round of a pick is not under way any more; its job may have ended."""
        if not self._measured.pop(pick.id, 1):
            self.release(pick.task_id)
        account = self._accounts.get(pick.job_id)
        if account is None:
            return
        account.flying.pop(pick.id, None)
        state = self._states[pick.task_id]
        if completed:
            state.put(state.round_of(pick.id))
        if failed:
            state.fail(pick.id)

    def trials_in_flight(self, job_id: int) -> int:
        """Return the trials that the rounds of a job under way have not made yet."""
        return sum(map(self.trials_left, self._accounts[job_id].flying.values()))

    def trials_left(self, pick: Pick) -> int:
        """Return the trials that a round under way has not made yet."""
        return max(pick.n_trials - self._measured[pick.id], 0)

    def trials_of(self, pick: Pick) -> int:
        """Return the trials that the round of a pick has made."""
        return self._states[pick.task_id].round_of(pick.id).n_trials

    def record_stored(self, pick: Pick, new: NewRecord, record: StoredRecord | None) -> None:
        """Note a trial that was stored; None: the task had that trace already.

        Its job may have ended meanwhile, and is read anew where somebody else is on its tasks.
        """
        if pick.id in self._measured:
            if not self._measured[pick.id]:
                self.release(pick.task_id)
            self._measured[pick.id] += 1
        state = self._states.get(pick.task_id)
        if record is None or state is None:
            return
        state.put(_with(state.round_of(pick.id), new, record))
        if record.best and record.latency is not None:
            state.latency = record.latency
        if pick.job_id in self._accounts:
            self._accounts[pick.job_id].own[pick.task_id] += 1

    def _users_of(self, task_ids: Collection[int]) -> list[int]:
        if not task_ids:
            return []
        return [
            job_id
            for job_id, account in self._accounts.items()
            if any(task.task_id in task_ids for task in account.tasks)
        ]

    def _look(self) -> None:
        """Find what other processes did, if it is time to."""
        now = self._clock()
        # A run has a clock of its own, which may start anywhere.
        self._looked = min(self._looked, now)
        self._reload_at = min(self._reload_at, now + _RELOAD_SECS)
        self._reload_some(now)
        if now - self._looked < _LOOK_SECS:
            return
        self._looked = now
        with self._sessions() as session:
            newest = measure_records.newest_id(session)
            changed = measure_records.foreign_since(session, self._newest, list(self._accounts))
        self._newest = newest
        self.reload(self._users_of({each.task_id for each in changed} & set(self._states)))

    def _reload_some(self, now: float) -> None:
        """Read one job anew; all of them in turn, as fast as takes a hundredth of the time."""
        if now < self._reload_at:
            return
        if not self._to_reload:
            self._to_reload = list(self._accounts)
        job_id = self._to_reload.pop()
        if job_id in self._accounts:
            self.reload([job_id])
        secs = self._clock() - now
        self._reload_at = now + max(_RELOAD_SECS / len(self._accounts), _REST_PER_RELOAD * secs)


def _with(before: RoundResult, new: NewRecord, record: StoredRecord) -> RoundResult:
    """Return a round with one trial more."""
    total = RecordTotals(
        before.n_trials, before.n_failed, before.n_timeouts, before.best_secs, before.run_secs
    )
    total.add({**vars(new), "latency": record.latency})
    return replace(
        before,
        n_trials=total.n_measured,
        n_failed=total.n_failed,
        best_secs=math.inf if total.best_secs is None else total.best_secs,
        run_secs=total.run_secs,
        n_timeouts=total.n_timeouts,
    )
