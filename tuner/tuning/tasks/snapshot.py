"""Immutable state of a job: the task table that the scheduler, the views and the reports use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from operator import attrgetter, sub
from typing import NamedTuple

import numpy as np
from sqlalchemy.orm import Session

from records import bests, jobs, measure_records, picks
from records.models import Job
from records.tasks import WeightedTask
from records.tuning import rounds
from scheduler import budget as budgets
from scheduler import estimate
from scheduler.forecasts.curves import Curves
from scheduler.forecasts.outlook import Outlook, look_ahead
from scheduler.state import TaskTable
from tuner.engines.base import origin_of
from tuner.tuning.tasks.task_profiles import TaskProfiles, task_profiles
from tuner.tuning.tasks.task_state import TaskFeatures, TaskState, states_of


@dataclass(frozen=True)
class TaskRow:
    """One task in the table of a job.

    Attributes:
        workload: Structural hash of the workload.
        name: Operators and shape of the workload.
        weight: Calls of the kernel in one inference.
        flop: Floating-point operations of one call.
        latency: Best latency of one call, seconds; inf before anything ran.
        n_trials: Trials that any job spent on the task.
        n_failed: Trials among them without a latency.
        share: Share of the network's latency, from 0 to 1.
        roof_secs: Latency that no kernel can beat on this device, seconds; 0 if unknown.
        exhausted: True if a search found no further candidates.
        origin: Source that proposed the best record; empty if unknown.
    """

    task_id: int
    workload: str
    name: str
    weight: int
    flop: float
    latency: float
    n_trials: int
    n_failed: int
    share: float
    roof_secs: float
    exhausted: bool
    origin: str = ""


@dataclass(frozen=True)
class JobSnapshot:
    """State of a job as of its records; rows and tables are computed on first use.

    Attributes:
        tasks: Tasks in the order of the network.
        latencies: Best latency of each task, seconds; inf before anything ran.
        features: Scheduler features of each task.
        own: Trials that this job paid for, per task.
        in_flight: Running rounds without a trial so far, per task.
        profiles: Similarity groups and roofs of the tasks.
        reached: Largest number of trials with which an equivalent job ended.
        shared: Trials that equivalent jobs have made so far.
        origins: Source that proposed each task's best record; empty if unknown.
    """

    tasks: Sequence[WeightedTask]
    latencies: tuple[float, ...]
    features: tuple[TaskFeatures, ...]
    own: tuple[int, ...]
    in_flight: tuple[int, ...]
    profiles: TaskProfiles
    reached: int = 0
    shared: int = 0
    origins: tuple[str, ...] = ()

    @cached_property
    def rows(self) -> tuple[TaskRow, ...]:
        """One row per task."""
        weights = np.array([task.weight for task in self.tasks])
        shares = estimate.shares(weights, np.array(self.latencies)).tolist()
        roofs = self.profiles.credible_roofs(self.latencies).tolist()
        return tuple(
            TaskRow(
                task_id=task.task_id,
                workload=task.workload_hash,
                name=task.name,
                weight=task.weight,
                flop=task.flop,
                latency=latency,
                n_trials=features.n_trials,
                n_failed=features.n_failed,
                share=share,
                roof_secs=roof,
                exhausted=not features.alive,
                origin=origin,
            )
            for task, latency, features, share, roof, origin in zip(
                self.tasks,
                self.latencies,
                self.features,
                shares,
                roofs,
                self.origins or [""] * len(self.tasks),
                strict=True,
            )
        )

    @cached_property
    def table(self) -> TaskTable:
        """The table as the scheduler takes it."""
        all_picks = np.sort([pick_id for task in self.features for pick_id in task.picks])
        last_picks = [task.last_pick for task in self.features]
        best_secs = np.array([task.best_secs for task in self.features])
        return TaskTable(
            weights=np.array([task.weight for task in self.tasks]),
            flop=np.array([task.flop for task in self.tasks]),
            best_secs=best_secs,
            window_secs=np.array([task.window_secs for task in self.features]),
            n_rounds=np.array([task.n_rounds for task in self.features]),
            n_trials=np.array([task.n_trials for task in self.features]),
            n_failed_rounds=np.array([task.n_failed_rounds for task in self.features]),
            n_stale_rounds=np.array([task.n_stale_rounds for task in self.features]),
            rounds_since_pick=len(all_picks) - np.searchsorted(all_picks, last_picks, side="right"),
            alive=np.array([task.alive for task in self.features]),
            similarity_groups=self.profiles.groups,
            secs_per_trial=np.array([task.secs_per_trial for task in self.features]),
            n_in_flight=np.array(self.in_flight) if any(self.in_flight) else None,
            curves=Curves.of(
                [task.curve for task in self.features], [task.trials for task in self.features]
            ),
            roof_secs=self.profiles.credible_roofs(best_secs),
        )

    @cached_property
    def others(self) -> tuple[int, ...]:
        """Trials per task that other jobs, or imports, contributed."""
        return tuple(map(sub, map(attrgetter("n_trials"), self.features), self.own))

    @property
    def total_latency_secs(self) -> float:
        """Estimated latency of the network, seconds; inf while a task has no record."""
        pairs = zip(self.tasks, self.latencies, strict=True)
        return sum(task.weight * latency for task, latency in pairs)

    @property
    def n_trials(self) -> int:
        """Trials that any job spent on these tasks."""
        return sum(features.n_trials for features in self.features)

    def spent_trials(self, budget: int | None) -> int:
        """Return the trials of a budget that count as spent.

        Others' trials on a task are credited as :func:`scheduler.budget.credited_trials` says. A
        task that others exhausted is settled; one that only this job exhausted is not, and its
        remaining trials go to other tasks. If an equivalent job spent as much as the budget, the
        job has nothing left to spend. The trials of one that did not come to its end, because it
        was cancelled or still runs, count in full once every task has had a trial: until then all
        of them may lie on one task.
        """
        if budget is None:
            return sum(self.own)
        credited = self._credited_trials(budget) if any(self.others) else 0
        shared = 0 if self.shared and self._has_untried() else self.shared
        return max(credited, sum(self.own) + shared, budget if self.reached >= budget else 0)

    def _has_untried(self) -> bool:
        return any(features.alive and not features.n_trials for features in self.features)

    def _credited_trials(self, budget: int) -> int:
        own, others = np.array(self.own), np.array(self.others)
        settled = np.array([not features.alive for features in self.features]) & (others > 0)
        return budgets.credited_trials(own, others, budget, settled=settled)


class EquivalentJob(NamedTuple):
    """Another job on exactly the same tasks and for the same goal.

    Attributes:
        reached: Trials with which it ended; 0 if it has not.
        n_trials: Trials that it has made.
    """

    job_id: int
    reached: int
    n_trials: int


def look_ahead_on(snapshot: JobSnapshot, n_trials: int | None = None) -> Outlook | None:
    """Forecast the latency of a network that more trials would save.

    Args:
        snapshot: State of the job.
        n_trials: Number of further trials; None for as many as the network has had.

    Returns:
        The forecast in seconds; None before every task had its first round.
    """
    table = snapshot.table
    if table.unseen.any() or not table.measured.any():
        return None
    weights = table.weights.astype(np.float64)
    return look_ahead(table, weights, snapshot.n_trials if n_trials is None else n_trials)


def read_snapshot(session: Session, tasks: Sequence[WeightedTask], job: Job | None) -> JobSnapshot:
    """Read the state of a job, or that of a network's tasks if it has none."""
    task_ids = [task.task_id for task in tasks]
    equivalents = read_equivalent_jobs(session, job, task_ids) if job else ()
    own = measure_records.own_trials(session, job.id) if job else {}
    return make_snapshot(tasks, read_states(session, task_ids), own, equivalents)


def read_states(session: Session, task_ids: Sequence[int]) -> dict[int, TaskState]:
    """Read the states of tasks, by task id."""
    histories = rounds.history(session, task_ids)
    empty = [
        result.pick_id
        for history in histories.values()
        for result in history
        if result.n_trials == 0 and result.pick_id is not None
    ]
    states = states_of(
        histories,
        bests.best_latencies(session, task_ids),
        picks.failed_picks(session, empty),
    )
    for task_id, head in bests.heads(session, task_ids).items():
        states[task_id].origin = origin_of(*head)
    return states


def read_equivalent_jobs(
    session: Session, job: Job, task_ids: Sequence[int]
) -> tuple[EquivalentJob, ...]:
    """Read the other jobs on exactly these tasks and for the same goal as a job."""
    return tuple(
        EquivalentJob(
            other.id,
            other.reached_trials or 0,
            sum(measure_records.own_trials(session, other.id).values()),
        )
        for other in jobs.equivalent_jobs(session, job, task_ids)
    )


def make_snapshot(
    tasks: Sequence[WeightedTask],
    states: Mapping[int, TaskState],
    own: Mapping[int, int],
    equivalents: Sequence[EquivalentJob] = (),
    in_flight: Mapping[int, int] | None = None,
    profiles: TaskProfiles | None = None,
) -> JobSnapshot:
    """Build the state of a job.

    Args:
        tasks: Tasks of the network.
        states: States of the tasks, by id.
        own: Trials that the job paid for, by task.
        equivalents: Jobs whose trials count for this one.
        in_flight: Running rounds without a trial so far, by task.
        profiles: Similarity groups and roofs of the tasks; None to derive them.
    """
    task_ids = [task.task_id for task in tasks]
    task_states = [states[task_id] for task_id in task_ids]
    # Several snapshots a round, each of hundreds of tasks: maps take a third of generators' time.
    return JobSnapshot(
        tasks=tasks,
        latencies=tuple(map(attrgetter("latency"), task_states)),
        features=tuple([state.cached_features or state.features() for state in task_states]),
        own=tuple(map(own.get, task_ids, repeat(0))),
        in_flight=tuple(map((in_flight or {}).get, task_ids, repeat(0))),
        profiles=profiles or task_profiles(tasks),
        reached=max((job.reached for job in equivalents), default=0),
        shared=sum(job.n_trials for job in equivalents),
        origins=tuple(map(attrgetter("origin"), task_states)),
    )
