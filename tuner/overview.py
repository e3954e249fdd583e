"""The task scheduler table of a job: what each task got, what it gave, and what it weighs."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from records import bests, jobs, measures, picks, rounds
from records.models import Job
from records.rounds import RoundResult
from records.tasks import WeightedTask
from scheduler import budget as budgets
from scheduler import estimate
from scheduler.curves import Curves
from scheduler.gradient import GradientSettings
from scheduler.outlook import Outlook, look_ahead
from scheduler.state import TaskTable, window_of

_WINDOW = GradientSettings().backward_window
# What the search and build of a trial take on two cores, how often a candidate runs, and what
# one that hangs costs: round figures, for tasks that differ by much.
_PREPARATION_SECS = 0.25
_RUNS_PER_TRIAL = 5
_TIMEOUT_SECS = 20.0


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

    @property
    def gflops(self) -> float:
        """Billions of floating-point operations a second; 0 before anything ran."""
        return self.flop / self.latency / 1e9 if 0 < self.latency < math.inf else 0.0


@dataclass(frozen=True)
class Overview:
    """A job as its records have it.

    Attributes:
        rows: One per task, in the network's order.
        table: The same for the scheduler.
        own: Trials this job paid for, per task.
        others: Trials on the same tasks that it did not pay for.
        reached: Most trials with which another job on the same tasks, for the same goal, ended.
        shared: Trials that such jobs have made so far.
    """

    rows: tuple[TaskRow, ...]
    table: TaskTable
    own: tuple[int, ...]
    others: tuple[int, ...]
    reached: int = 0
    shared: int = 0

    @property
    def total_secs(self) -> float:
        """Estimated latency of the network, seconds; inf while a task has no record."""
        return sum(row.weight * row.latency for row in self.rows)

    @property
    def n_trials(self) -> int:
        """Trials spent on these tasks, by whomever."""
        return sum(row.n_trials for row in self.rows)

    def spent_trials(self, budget: int | None) -> int:
        """Trials of a budget that count as spent; see :func:`scheduler.budget.credited_trials`.

        Where another job spent as much on just these tasks, this one has nothing left to spend.
        A task that others exhausted is settled. One that this job alone exhausted is not: what
        it left goes to the others.
        """
        if budget is None:
            return sum(self.own)
        own, others = np.array(self.own), np.array(self.others)
        settled = ~self.table.alive & (others > 0)
        credited = budgets.credited_trials(own, others, budget, settled=settled)
        return max(credited, sum(self.own) + self.shared, budget if self.reached >= budget else 0)


def look_ahead_on(overview: Overview, n_trials: int | None = None) -> Outlook | None:
    """Forecast what more trials would save of the latency of a network.

    Args:
        overview: The network's table.
        n_trials: Trials; None: as many as it has had.

    Returns:
        The forecast in seconds; None before every task had its first round.
    """
    table = overview.table
    if table.unseen.any() or not table.measured.any():
        return None
    weights = table.weights.astype(np.float64)
    return look_ahead(table, weights, overview.n_trials if n_trials is None else n_trials)


def read_overview(session: Session, tasks: Sequence[WeightedTask], job: Job | None) -> Overview:
    """Read the table of a network's tasks; ``job`` tells whose trials are its own."""
    task_ids = [task.task_id for task in tasks]
    counts = measures.count_by_task(session, task_ids)
    own = measures.own_trials(session, job.id) if job else {}
    histories = rounds.history(session, task_ids)
    best = bests.best_latencies(session, task_ids)
    latencies = np.array([best.get(task_id, math.inf) for task_id in task_ids])
    weights = np.array([task.weight for task in tasks])
    shares = estimate.shares(weights, latencies)
    last_picks = [
        pick_id
        for history in histories.values()
        if history and history[-1].n_trials == 0 and (pick_id := history[-1].pick_id) is not None
    ]
    table = _table(
        tasks,
        [histories[task_id] for task_id in task_ids],
        picks.failed_picks(session, last_picks),
    )
    rows = tuple(
        TaskRow(
            task_id=task.task_id,
            workload=task.workload_hash,
            name=task.name,
            weight=task.weight,
            flop=task.flop,
            latency=float(latencies[i]),
            n_trials=counts[task.task_id].n_trials,
            n_failed=counts[task.task_id].n_failed,
            share=float(shares[i]),
            exhausted=not bool(table.alive[i]),
        )
        for i, task in enumerate(tasks)
    )
    mine = tuple(own.get(task_id, 0) for task_id in task_ids)
    others = tuple(row.n_trials - n for row, n in zip(rows, mine, strict=True))
    twins = jobs.twins(session, job, task_ids) if job else []
    reached = max((twin.reached_trials or 0 for twin in twins), default=0)
    shared = sum(sum(measures.own_trials(session, twin.id).values()) for twin in twins)
    return Overview(rows, table, mine, others, reached, shared)


def _table(
    tasks: Sequence[WeightedTask],
    histories: Sequence[Sequence[RoundResult]],
    failed: set[int],
) -> TaskTable:
    all_picks = sorted(r.pick_id for history in histories for r in history if r.pick_id is not None)
    curves = [np.array([r.best_secs for r in history], dtype=float) for history in histories]
    return TaskTable(
        weights=np.array([task.weight for task in tasks]),
        flop=np.array([task.flop for task in tasks]),
        best_secs=np.array(
            [history[-1].best_secs if history else math.inf for history in histories]
        ),
        window_secs=np.array([window_of(curve, _WINDOW) for curve in curves]),
        n_rounds=np.array([len(history) for history in histories]),
        n_trials=np.array([sum(r.n_trials for r in history) for history in histories]),
        n_failed_rounds=np.array([_failed_streak(history) for history in histories]),
        rounds_since_pick=np.array(
            [len(all_picks) - bisect_right(all_picks, _last_pick(history)) for history in histories]
        ),
        alive=np.array([not _exhausted(history, failed) for history in histories]),
        similarity_groups=_similarity_groups([task.name for task in tasks]),
        secs_per_trial=np.array([_secs_per_trial(history) for history in histories]),
        curves=Curves.of(
            [[r.best_secs for r in history] for history in histories],
            [[r.n_trials for r in history] for history in histories],
        ),
    )


def similarity_group(name: str) -> str:
    """Name the group of a task: its operators, without its shape."""
    return name.partition("[")[0]


def _similarity_groups(names: Sequence[str]) -> NDArray[np.int64]:
    groups = [similarity_group(name) for name in names]
    numbers = {group: number for number, group in enumerate(sorted(set(groups)))}
    return np.array([numbers[group] for group in groups], dtype=np.int64)


def _secs_per_trial(history: Sequence[RoundResult]) -> float:
    """Estimate what a trial of a task takes, seconds; 0 before the first.

    A function of the records alone, not of the clock: a resumed job decides alike.
    """
    n_trials = sum(result.n_trials for result in history)
    if not n_trials:
        return 0.0
    running = _RUNS_PER_TRIAL * sum(result.run_secs for result in history)
    waiting = _TIMEOUT_SECS * sum(result.n_timeouts for result in history)
    return _PREPARATION_SECS + (running + waiting) / n_trials


def _last_pick(history: Sequence[RoundResult]) -> int:
    return max((r.pick_id for r in history if r.pick_id is not None), default=0)


def _failed_streak(history: Sequence[RoundResult]) -> int:
    """Rounds at the end of a history in which nothing ran."""
    streak = 0
    for result in reversed(history):
        if result.n_trials > result.n_failed:
            break
        streak += 1
    return streak


def _exhausted(history: Sequence[RoundResult], failed: set[int]) -> bool:
    """A round that searched and found nothing new to try was the last."""
    if not history or history[-1].pick_id is None or history[-1].n_trials:
        return False
    return history[-1].pick_id not in failed
