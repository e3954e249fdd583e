"""The history of tasks, round by round."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import and_, case, func, or_, select
from sqlalchemy.orm import Session

from records.models import MeasureRecord, Pick


@dataclass(frozen=True)
class RoundResult:
    """What one round did for a task.

    Attributes:
        pick_id: The pick that bought it; None for records that no pick paid for.
        n_trials: Trials recorded.
        n_failed: Those of them that failed.
        best_secs: Best verified latency of the task after this round, seconds; inf if none.
    """

    pick_id: int | None
    n_trials: int
    n_failed: int
    best_secs: float


def history(session: Session, task_ids: Sequence[int]) -> dict[int, list[RoundResult]]:
    """Return the rounds of each task in the order of their picks, of all jobs.

    Records that no pick paid for (imported ones) come first, as one round with
    ``pick_id`` None. A completed pick without records is a round of no trials; an
    open one appears once it has a record. A task without rounds has an empty list.
    """
    rounds: dict[int, list[RoundResult]] = {task_id: [] for task_id in task_ids}
    secs = func.min(case((MeasureRecord.verified, MeasureRecord.latency)))
    numbers = (func.count(MeasureRecord.id), func.count(MeasureRecord.error_kind), secs)
    free = (
        select(MeasureRecord.task_id, *numbers)
        .where(MeasureRecord.task_id.in_(task_ids), MeasureRecord.pick_id.is_(None))
        .group_by(MeasureRecord.task_id)
    )
    for task_id, n_trials, n_failed, best in session.execute(free):
        _append(rounds[task_id], None, n_trials, n_failed, best)
    same_task = and_(MeasureRecord.pick_id == Pick.id, MeasureRecord.task_id == Pick.task_id)
    paid = (
        select(Pick.task_id, Pick.id, *numbers)
        .outerjoin(MeasureRecord, same_task)
        .where(Pick.task_id.in_(task_ids))
        .group_by(Pick.task_id, Pick.id, Pick.done)
        .having(or_(Pick.done, func.count(MeasureRecord.id) > 0))
        .order_by(Pick.id)
    )
    for task_id, pick_id, n_trials, n_failed, best in session.execute(paid):
        _append(rounds[task_id], pick_id, n_trials, n_failed, best)
    return rounds


def _append(
    rounds: list[RoundResult], pick_id: int | None, n_trials: int, n_failed: int, best: float | None
) -> None:
    before = rounds[-1].best_secs if rounds else math.inf
    after = before if best is None else min(before, best)
    rounds.append(RoundResult(pick_id, n_trials, n_failed, after))
