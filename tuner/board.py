"""What a coordinator knows of its tasks without asking the database at every step.

It is the only one that measures for its jobs, so that what it wrote is what there is. What other
processes add meanwhile (imports, another coordinator on the same tasks) is found now and then.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session, sessionmaker

from records import measures
from records.measures import NewRecord
from records.models import Job, Pick
from records.rounds import RoundResult
from records.storing import Stored
from records.sums import TIMEOUTS
from records.tasks import WeightedTask
from tuner.overview import Overview, Twin, make_overview, read_states, read_twins

if TYPE_CHECKING:
    from tuner.task_states import TaskState

# Others are looked for so often, and everything is read anew so often.
_LOOK_SECS = 0.5
_RELOAD_SECS = 60.0


@dataclass
class _Account:
    """What a job paid for, by task, jobs that count for it, and its rounds under way."""

    tasks: Sequence[WeightedTask]
    own: Counter[int]
    twins: tuple[Twin, ...]
    flying: dict[int, Pick]


class Board:
    """The tasks of all jobs under way; used by one thread."""

    def __init__(self, sessions: sessionmaker[Session], clock: Callable[[], float]) -> None:
        self._sessions = sessions
        self._clock = clock
        self._states: dict[int, TaskState] = {}
        self._accounts: dict[int, _Account] = {}
        self._measured: Counter[int] = Counter()
        self._newest = 0
        self._looked = self._loaded = 0.0

    def enter(self, job_id: int, tasks: Sequence[WeightedTask]) -> None:
        """Read what there is to know of a job; jobs that share its tasks are read anew."""
        if not self._accounts:
            self._looked = self._loaded = self._clock()
        self._accounts[job_id] = _Account(tasks, Counter(), (), {})
        self.reload()

    def knows(self, job_id: int) -> bool:
        """Whether a job is under way."""
        return job_id in self._accounts

    def leave(self, job_id: int) -> None:
        """Forget a job that is not under way any more."""
        self._accounts.pop(job_id, None)
        # What it ended with counts for those on the same tasks.
        self.reload(
            other
            for other, account in self._accounts.items()
            if any(twin.job_id == job_id for twin in account.twins)
        )
        kept = {task.task_id for each in self._accounts.values() for task in each.tasks}
        self._states = {i: state for i, state in self._states.items() if i in kept}

    def reload(self, job_ids: Iterable[int] | None = None) -> None:
        """Read everything anew that concerns some jobs; all by default."""
        chosen = list(self._accounts if job_ids is None else job_ids)
        with self._sessions() as session:
            if job_ids is None:
                self._newest = measures.newest_id(session)
            for job_id in chosen:
                self._read(session, job_id, self._accounts[job_id])

    def _read(self, session: Session, job_id: int, account: _Account) -> None:
        task_ids = [task.task_id for task in account.tasks]
        self._states.update(read_states(session, task_ids))
        account.own = Counter(measures.own_trials(session, job_id))
        account.twins = read_twins(session, session.get_one(Job, job_id), task_ids)

    def overview(self, job_id: int) -> Overview:
        """Return the table of a job."""
        self._look()
        account = self._accounts[job_id]
        twins = [self._as_of_now(twin) for twin in account.twins]
        return make_overview(account.tasks, self._states, account.own, twins, self._flying())

    def _as_of_now(self, twin: Twin) -> Twin:
        account = self._accounts.get(twin.job_id)
        return twin if account is None else twin._replace(n_trials=account.own.total())

    def take_off(self, pick: Pick) -> None:
        """Note that the round of a pick is under way."""
        self._accounts[pick.job_id].flying[pick.id] = pick
        self._measured[pick.id] = self._states[pick.task_id].round_of(pick.id).n_trials

    def land(self, pick: Pick, *, completed: bool, failed: bool = False) -> None:
        """Note that the round of a pick is not under way any more; its job may have ended."""
        self._measured.pop(pick.id, None)
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

    def rounds_in_flight(self, job_id: int) -> int:
        """Return how many rounds of a job are under way."""
        return len(self._accounts[job_id].flying)

    def stored(self, pick: Pick, new: NewRecord, record: Stored | None) -> None:
        """Note a trial that was stored; None: the task had that trace already.

        Its job may have ended meanwhile, and is read anew where somebody else is on its tasks.
        """
        if pick.id in self._measured:
            self._measured[pick.id] += 1
        state = self._states.get(pick.task_id)
        if record is None or state is None:
            return
        state.put(_with(state.round_of(pick.id), new, record))
        if record.best and record.latency is not None:
            state.latency = record.latency
        if pick.job_id in self._accounts:
            self._accounts[pick.job_id].own[pick.task_id] += 1

    def _flying(self) -> Counter[int]:
        """Count the rounds of all jobs that have measured nothing yet, by task."""
        return Counter(
            pick.task_id
            for account in self._accounts.values()
            for pick in account.flying.values()
            if not self._states[pick.task_id].round_of(pick.id).n_trials
        )

    def _look(self) -> None:
        """Find what other processes did, if it is time to."""
        now = self._clock()
        # A run has a clock of its own, which may start anywhere.
        self._looked, self._loaded = min(self._looked, now), min(self._loaded, now)
        if now - self._loaded >= _RELOAD_SECS:
            self._looked = self._loaded = now
            self.reload()
        if now - self._looked < _LOOK_SECS:
            return
        self._looked = now
        with self._sessions() as session:
            newest = measures.newest_id(session)
            changed = measures.foreign_since(session, self._newest, list(self._accounts))
        self._newest = newest
        if touched := {each.task_id for each in changed} & set(self._states):
            self.reload(
                [
                    job_id
                    for job_id, account in self._accounts.items()
                    if any(task.task_id in touched for task in account.tasks)
                ]
            )


def _with(before: RoundResult, new: NewRecord, record: Stored) -> RoundResult:
    """Return a round with one trial more."""
    best = before.best_secs
    if new.verified and record.latency is not None:
        best = min(best, record.latency)
    return replace(
        before,
        n_trials=before.n_trials + 1,
        n_failed=before.n_failed + (new.error_kind is not None),
        best_secs=best,
        run_secs=before.run_secs + (record.latency or 0.0),
        n_timeouts=before.n_timeouts + (new.error_kind in TIMEOUTS),
    )
