"""Round histories of tasks."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import null, or_, select
from sqlalchemy.orm import Session

from records.models import ImportedRound, Pick


class RoundResult(NamedTuple):
    """The result of one round on a task; a tuple, because every trial makes a new one.

    Attributes:
        pick_id: Pick that paid for the round; None for records that no pick paid for.
        n_trials: Trials recorded.
        n_failed: Failed trials among them.
        best_secs: Best verified latency of the task after this round, seconds; inf if none.
        secs: Duration of the round, seconds; None if unknown.
        run_secs: Sum of the latencies of its valid trials, seconds.
        n_timeouts: Trials whose build or run timed out.
    """

    pick_id: int | None
    n_trials: int
    n_failed: int
    best_secs: float
    secs: float | None = None
    run_secs: float = 0.0
    n_timeouts: int = 0


def history(session: Session, task_ids: Sequence[int]) -> dict[int, list[RoundResult]]:
    """Return the rounds of each task in the order of their picks, over all jobs.

    Records that no pick paid for, such as imported ones, come first, as one round with
    ``pick_id`` None. A completed pick without records is a round of zero trials; an open pick
    appears once it has a record. A task without rounds has an empty list.
    """
    rounds: dict[int, list[RoundResult]] = {task_id: [] for task_id in task_ids}
    imported = select(ImportedRound.task_id, null(), null(), *_totals(ImportedRound)).where(
        ImportedRound.task_id.in_(task_ids)
    )
    paid = (
        select(Pick.task_id, Pick.id, Pick.secs, *_totals(Pick))
        .where(Pick.task_id.in_(task_ids), or_(Pick.done, Pick.n_measured > 0))
        .order_by(Pick.id)
    )
    for stmt in (imported, paid):
        for row in session.execute(stmt):
            _append(rounds[row[0]], _result(tuple(row)))
    return rounds


def _result(row: Sequence[Any]) -> RoundResult:
    _, pick_id, secs, n_trials, n_failed, best, run_secs, n_timeouts = row
    best_secs = math.inf if best is None else best
    return RoundResult(pick_id, n_trials, n_failed, best_secs, secs, run_secs, n_timeouts)


def _totals(model: type[Pick | ImportedRound]) -> tuple[Any, ...]:
    return (
        model.n_measured,
        model.n_failed,
        model.best_secs,
        model.run_secs,
        model.n_timeouts,
    )


def _append(rounds: list[RoundResult], result: RoundResult) -> None:
    """Append a round, carrying a better latency of earlier rounds over."""
    before = rounds[-1].best_secs if rounds else math.inf
    rounds.append(result._replace(best_secs=min(before, result.best_secs)))
