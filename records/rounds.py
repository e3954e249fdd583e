"""The history of tasks, round by round."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import and_, case, func, or_, select
from sqlalchemy.orm import Session

from records.models import MeasureRecord, Pick

_TIMEOUTS = ("build_timeout", "run_timeout")


@dataclass(frozen=True)
class RoundResult:
    """What one round did for a task.

    Attributes:
        pick_id: The pick that bought it; None for records that no pick paid for.
        n_trials: Trials recorded.
        n_failed: Those of them that failed.
        best_secs: Best verified latency of the task after this round, seconds; inf if none.
        secs: How long it took, seconds; None if nobody said.
        run_secs: Latencies of its valid trials added up, seconds.
        n_timeouts: Trials that ran or built until their time was up.
    """

    pick_id: int | None
    n_trials: int
    n_failed: int
    best_secs: float
    secs: float | None = None
    run_secs: float = 0.0
    n_timeouts: int = 0


def history(session: Session, task_ids: Sequence[int]) -> dict[int, list[RoundResult]]:
    """Return the rounds of each task in the order of their picks, of all jobs.

    Records that no pick paid for (imported ones) come first, as one round with
    ``pick_id`` None. A completed pick without records is a round of no trials; an
    open one appears once it has a record. A task without rounds has an empty list.
    """
    rounds: dict[int, list[RoundResult]] = {task_id: [] for task_id in task_ids}
    numbers = (
        func.count(MeasureRecord.id),
        func.count(MeasureRecord.error_kind),
        func.min(case((MeasureRecord.verified, MeasureRecord.latency))),
        func.sum(MeasureRecord.latency),
        func.count(case((MeasureRecord.error_kind.in_(_TIMEOUTS), 1))),
    )
    free = (
        select(MeasureRecord.task_id, *numbers)
        .where(MeasureRecord.task_id.in_(task_ids), MeasureRecord.pick_id.is_(None))
        .group_by(MeasureRecord.task_id)
    )
    for task_id, *row in session.execute(free):
        _append(rounds[task_id], _result(None, None, *row))
    same_task = and_(MeasureRecord.pick_id == Pick.id, MeasureRecord.task_id == Pick.task_id)
    paid = (
        select(Pick.task_id, Pick.id, Pick.secs, *numbers)
        .outerjoin(MeasureRecord, same_task)
        .where(Pick.task_id.in_(task_ids))
        .group_by(Pick.task_id, Pick.id, Pick.done, Pick.secs)
        .having(or_(Pick.done, func.count(MeasureRecord.id) > 0))
        .order_by(Pick.id)
    )
    for task_id, pick_id, took, *row in session.execute(paid):
        _append(rounds[task_id], _result(pick_id, took, *row))
    return rounds


def _result(  # noqa: PLR0913, PLR0917  a row of the query, column by column
    pick_id: int | None,
    secs: float | None,
    n_trials: int,
    n_failed: int,
    best_secs: float | None,
    run_secs: float | None,
    n_timeouts: int,
) -> RoundResult:
    best = math.inf if best_secs is None else best_secs
    return RoundResult(pick_id, n_trials, n_failed, best, secs, run_secs or 0.0, n_timeouts)


def _append(rounds: list[RoundResult], result: RoundResult) -> None:
    """Add a round; what was better before stays the best."""
    before = rounds[-1].best_secs if rounds else math.inf
    rounds.append(replace(result, best_secs=min(before, result.best_secs)))
