"""The task scheduler table of a job: what each task got, what it gave, and what it weighs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from records import bests, jobs, measure_records, picks, rounds
from records.models import Job
from records.tasks import WeightedTask
from scheduler import budget as budgets
from scheduler import estimate
from scheduler.curves import Curves
from scheduler.outlook import Outlook, look_ahead
from scheduler.state import TaskTable
from tuner.tuning.task_state import TaskFeatures, TaskState, states_of


@dataclass(frozen=True)
class TaskRow:
    """One line of the table; latency in seconds of one call, inf before anything ran."""

    task_id: int
    workload: str
    name: str
    weight: int
    flop: float
    latency: float
    n_trials: int
    n_failed: int
    share: float
    exhausted: bool


@dataclass(frozen=True)
class JobSnapshot:
    """A job as its records have it; rows and tables are drawn up when they are asked for.

    Attributes:
        tasks: In the network's order.
        latencies: Best latency of each task, seconds; inf before anything ran.
        derived: What follows from the rounds of each task.
        own: Trials this job paid for, per task.
        in_flight: Rounds under way that have measured nothing yet, per task.
        reached: Most trials with which another job on the same tasks, for the same goal, ended.
        shared: Trials that such jobs have made so far.
    """

    tasks: Sequence[WeightedTask]
    latencies: tuple[float, ...]
    derived: tuple[TaskFeatures, ...]
    own: tuple[int, ...]
    in_flight: tuple[int, ...]
    reached: int = 0
    shared: int = 0

    @cached_property
    def rows(self) -> tuple[TaskRow, ...]:
        """One per task."""
        weights = np.array([task.weight for task in self.tasks])
        shares = estimate.shares(weights, np.array(self.latencies)).tolist()
        return tuple(
            TaskRow(
                task_id=task.task_id,
                workload=task.workload_hash,
                name=task.name,
                weight=task.weight,
                flop=task.flop,
                latency=latency,
                n_trials=each.n_trials,
                n_failed=each.n_failed,
                share=share,
                exhausted=not each.alive,
            )
            for task, latency, each, share in zip(
                self.tasks, self.latencies, self.derived, shares, strict=True
            )
        )

    @cached_property
    def table(self) -> TaskTable:
        """The same for the scheduler."""
        return _table(self.tasks, self.derived, self.in_flight)

    @cached_property
    def others(self) -> tuple[int, ...]:
        """Trials on the same tasks that this job did not pay for."""
        return tuple(each.n_trials - n for each, n in zip(self.derived, self.own, strict=True))

    @property
    def total_secs(self) -> float:
        """Estimated latency of the network, seconds; inf while a task has no record."""
        pairs = zip(self.tasks, self.latencies, strict=True)
        return sum(task.weight * latency for task, latency in pairs)

    @property
    def n_trials(self) -> int:
        """Trials spent on these tasks, by whomever."""
        return sum(each.n_trials for each in self.derived)

    def spent_trials(self, budget: int | None) -> int:
        """Trials of a budget that count as spent; see :func:`scheduler.budget.credited_trials`.

        Where another job spent as much on just these tasks, this one has nothing left to spend.
        A task that others exhausted is settled. One that this job alone exhausted is not: what
        it left goes to the others.
        """
        if budget is None:
            return sum(self.own)
        credited = self._credited_trials(budget) if any(self.others) else 0
        return max(credited, sum(self.own) + self.shared, budget if self.reached >= budget else 0)

    def _credited_trials(self, budget: int) -> int:
        own, others = np.array(self.own), np.array(self.others)
        settled = np.array([not each.alive for each in self.derived]) & (others > 0)
        return budgets.credited_trials(own, others, budget, settled=settled)


class EquivalentJob(NamedTuple):
    """Another job on just the same tasks, for the same goal.

    ``reached`` are the trials with which it ended, 0 if it did not; ``n_trials`` those it made.
    """

    job_id: int
    reached: int
    n_trials: int


def look_ahead_on(snapshot: JobSnapshot, n_trials: int | None = None) -> Outlook | None:
    """Forecast what more trials would save of the latency of a network.

    Args:
        snapshot: The network's table.
        n_trials: Trials; None: as many as it has had.

    Returns:
        The forecast in seconds; None before every task had its first round.
    """
    table = snapshot.table
    if table.unseen.any() or not table.measured.any():
        return None
    weights = table.weights.astype(np.float64)
    return look_ahead(table, weights, snapshot.n_trials if n_trials is None else n_trials)


def read_snapshot(session: Session, tasks: Sequence[WeightedTask], job: Job | None) -> JobSnapshot:
    """Read the table of a network's tasks; ``job`` tells whose trials are its own."""
    task_ids = [task.task_id for task in tasks]
    twins = read_twins(session, job, task_ids) if job else ()
    own = measure_records.own_trials(session, job.id) if job else {}
    return make_snapshot(tasks, read_states(session, task_ids), own, twins)


def read_states(session: Session, task_ids: Sequence[int]) -> dict[int, TaskState]:
    """Read what is known of tasks."""
    histories = rounds.history(session, task_ids)
    empty = [
        each.pick_id
        for history in histories.values()
        for each in history
        if each.n_trials == 0 and each.pick_id is not None
    ]
    latencies = bests.best_latencies(session, task_ids)
    return states_of(histories, latencies, picks.failed_picks(session, empty))


def read_twins(session: Session, job: Job, task_ids: Sequence[int]) -> tuple[EquivalentJob, ...]:
    """Read what other jobs on just these tasks, for the same goal, did for a job."""
    return tuple(
        EquivalentJob(
            twin.id,
            twin.reached_trials or 0,
            sum(measure_records.own_trials(session, twin.id).values()),
        )
        for twin in jobs.equivalent_jobs(session, job, task_ids)
    )


def make_snapshot(
    tasks: Sequence[WeightedTask],
    states: Mapping[int, TaskState],
    own: Mapping[int, int],
    twins: Sequence[EquivalentJob] = (),
    in_flight: Mapping[int, int] | None = None,
) -> JobSnapshot:
    """Draw the table of a network's tasks up.

    Args:
        tasks: Of the network.
        states: Of the tasks, by id.
        own: Trials that the job paid for, by task.
        twins: Jobs whose trials count for it.
        in_flight: Rounds under way that have measured nothing yet, by task.
    """
    known = [states[task.task_id] for task in tasks]
    flying = in_flight or {}
    return JobSnapshot(
        tasks=tasks,
        latencies=tuple(state.latency for state in known),
        derived=tuple(state.derived() for state in known),
        own=tuple(own.get(task.task_id, 0) for task in tasks),
        in_flight=tuple(flying.get(task.task_id, 0) for task in tasks),
        reached=max((twin.reached for twin in twins), default=0),
        shared=sum(twin.n_trials for twin in twins),
    )


def _table(
    tasks: Sequence[WeightedTask], derived: Sequence[TaskFeatures], in_flight: Sequence[int]
) -> TaskTable:
    all_picks = np.sort([pick_id for each in derived for pick_id in each.picks])
    last_picks = [each.last_pick for each in derived]
    return TaskTable(
        weights=np.array([task.weight for task in tasks]),
        flop=np.array([task.flop for task in tasks]),
        best_secs=np.array([each.best_secs for each in derived]),
        window_secs=np.array([each.window_secs for each in derived]),
        n_rounds=np.array([each.n_rounds for each in derived]),
        n_trials=np.array([each.n_trials for each in derived]),
        n_failed_rounds=np.array([each.n_failed_rounds for each in derived]),
        rounds_since_pick=len(all_picks) - np.searchsorted(all_picks, last_picks, side="right"),
        alive=np.array([each.alive for each in derived]),
        similarity_groups=_similarity_groups(tuple(task.name for task in tasks)),
        secs_per_trial=np.array([each.secs_per_trial for each in derived]),
        n_in_flight=np.array(in_flight) if any(in_flight) else None,
        curves=Curves.of([each.curve for each in derived], [each.trials for each in derived]),
    )


def similarity_group(name: str) -> str:
    """Name the group of a task: its operators, without its shape."""
    return name.partition("[")[0]


@lru_cache(maxsize=1024)
def _similarity_groups(names: tuple[str, ...]) -> NDArray[np.int64]:
    groups = [similarity_group(name) for name in names]
    numbers = {group: number for number, group in enumerate(sorted(set(groups)))}
    return np.array([numbers[group] for group in groups], dtype=np.int64)
