"""The history of tasks, round by round."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import null, or_, select
from sqlalchemy.orm import Session

from records.errors import NoSuchRow
from records.models import ImportedRound, Pick


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
    free = select(ImportedRound.task_id, null(), null(), *_sums(ImportedRound)).where(
        ImportedRound.task_id.in_(task_ids)
    )
    paid = (
        select(Pick.task_id, Pick.id, Pick.secs, *_sums(Pick))
        .where(Pick.task_id.in_(task_ids), or_(Pick.done, Pick.n_measured > 0))
        .order_by(Pick.id)
    )
    for query in (free, paid):
        for row in session.execute(query):
            _append(rounds[row[0]], _result(tuple(row)))
    return rounds


def of_pick(session: Session, pick_id: int) -> RoundResult:
    """Return what one round came to by itself.

    Its ``best_secs`` is that of its own trials, whatever was better before.

    Raises:
        NoSuchRow: If there is no such pick.
    """
    wanted = select(Pick.task_id, Pick.id, Pick.secs, *_sums(Pick)).where(Pick.id == pick_id)
    row = session.execute(wanted).one_or_none()
    if row is None:
        raise NoSuchRow(f"no pick {pick_id}")
    return _result(tuple(row))


def _result(row: Sequence[Any]) -> RoundResult:
    _, pick_id, secs, n_trials, n_failed, best, run_secs, n_timeouts = row
    best_secs = math.inf if best is None else best
    return RoundResult(pick_id, n_trials, n_failed, best_secs, secs, run_secs, n_timeouts)


def _sums(model: type[Pick | ImportedRound]) -> tuple[Any, ...]:
    return (
        model.n_measured,
        model.n_failed,
        model.best_secs,
        model.run_secs,
        model.n_timeouts,
    )


def _append(rounds: list[RoundResult], result: RoundResult) -> None:
    """Add a round; what was better before stays the best."""
    before = rounds[-1].best_secs if rounds else math.inf
    rounds.append(replace(result, best_secs=min(before, result.best_secs)))
