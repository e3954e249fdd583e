"""Picks of a job, as lists and tables show them, with their reason in a sentence."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from records import jobs, tasks
from records.models import Pick
from records.tasks import WeightedTask
from tuner.formatting import counted, short_milliseconds
from tuner.schemas import PickView

# Columns instead of objects, which take longer to build than to read.
_COLUMNS = (
    Pick.sequence,
    Pick.task_id,
    Pick.n_trials,
    Pick.terms,
    Pick.done,
    Pick.n_measured,
    Pick.n_failed,
    Pick.secs,
    Pick.total_secs,
    Pick.created,
)

_REASONS = {
    "": "no reason was stored",
    "warm_up": "every task gets a first round, those with most operations in an inference first",
    "retry": "all its trials failed so far, and it is due for another try",
    "gradient": "a round here is expected to lower the objective most",
    "tvm": "TVM's rule expects most of a round here",
    "epsilon": "drawn at random among the tasks with something to gain",
    "round_robin": "it has had the fewest rounds",
}


#: Meanings of the terms that :func:`explain` prints.
TERMS = {
    "gain": "what one more round of the task is expected to save of an inference; the pick is "
    "where it is largest for its cost, and the next best is that of the runner-up",
    "recent slope": "change of the latency of a call by round, over the last rounds of the task",
    "hope": "change of it if the task keeps its average pace since its first round",
    "step to what similar tasks reach": "change of it if the task comes to the throughput that "
    "a task with the same operators has reached",
    "roof": "latency of a call at the peaks of the device: no task is expected below it",
    "weight": "calls of the task in an inference, times the importance of its network",
    "a trial costs": "time of a trial of the task, compared with the average trial of the job",
}


def explain(terms: Mapping[str, Any]) -> str:
    """Return the reason of a pick, with the numbers behind it, as one sentence.

    Args:
        terms: Terms of a :class:`scheduler.allocator.Decision`, as stored with the pick:
            latencies in seconds, None where a number was not finite.
    """
    reason = str(terms.get("reason") or "")
    sentence = _REASONS.get(reason, "picked by a rule that this version no longer has")
    numbers = _numbers(reason, terms)
    return sentence + (f": {', '.join(numbers)}" if numbers else "")


def _numbers(reason: str, terms: Mapping[str, Any]) -> list[str]:
    if reason == "retry":
        return [
            f"{_count(terms, 'n_failed_rounds', 'round')} failed",
            f"{_count(terms, 'rounds_since_pick', 'pick')} ago, "
            f"after waiting for {_count(terms, 'backoff', 'pick')}",
        ]
    if reason == "round_robin":
        return [_count(terms, "n_rounds", "round")]
    if reason not in ("gradient", "tvm", "epsilon"):
        return []
    # Tasks are ranked by gain over cost, and so is the runner-up.
    ranked = {"gain": (terms.get("gain") or 0.0) / (terms.get("cost") or 1.0)}
    parts = [f"gain {_ms(ranked, 'gain')} a round"]
    if terms.get("runner_up_gain") is not None:
        parts.append(f"the next best {_ms(terms, 'runner_up_gain')}")
    weight = [f"weight {terms['objective_weight']:.4g}"] if terms.get("objective_weight") else []
    roof = [f"roof {_ms(terms, 'roof')} a call"] if terms.get("roof") else []
    parts += [
        f"recent slope {_ms(terms, 'backward')} a round",
        f"hope {_ms(terms, 'optimistic')}",
        f"step to what similar tasks reach {_ms(terms, 'similarity')}",
        *roof,
        *weight,
    ]
    if terms.get("cost") is not None:
        parts.append(f"a trial costs {terms['cost']:.2g} of the average")
    return parts


def _ms(terms: Mapping[str, Any], name: str) -> str:
    value = terms.get(name)
    return "unknown" if value is None else f"{short_milliseconds(value)} ms"


def _count(terms: Mapping[str, Any], name: str, noun: str) -> str:
    value = terms.get(name)
    return f"unknown {noun}s" if value is None else counted(round(value), noun)


def read_picks(
    session: Session, job_id: int, *, before: int | None = None, limit: int = 50
) -> list[PickView]:
    """Return at most ``limit`` picks of a job, the newest first; only those before a number.

    Raises:
        NoSuchRow: If the job does not exist.
    """
    weighted = tasks.tasks_of_job(session, jobs.get_job(session, job_id))
    stmt = select(*_COLUMNS).where(Pick.job_id == job_id).order_by(Pick.sequence.desc())
    if before is not None:
        stmt = stmt.where(Pick.sequence < before)
    return _views(session, stmt.limit(limit), weighted)


def last_pick(session: Session, job_id: int, weighted: Sequence[WeightedTask]) -> PickView | None:
    """Return the newest pick of a job that has these tasks."""
    stmt = select(*_COLUMNS).where(Pick.job_id == job_id).order_by(Pick.sequence.desc()).limit(1)
    return next(iter(_views(session, stmt, weighted)), None)


def picks_by_task(
    session: Session, pick_ids: Sequence[int], weighted: Sequence[WeightedTask]
) -> dict[int, PickView]:
    """Return picks, at most one a task, by the number of their task."""
    stmt = select(*_COLUMNS).where(Pick.id.in_(pick_ids))
    return {pick.task_id: pick for pick in _views(session, stmt, weighted)}


def _views(session: Session, stmt: Select[Any], weighted: Sequence[WeightedTask]) -> list[PickView]:
    rows = {task.task_id: index for index, task in enumerate(weighted)}
    return [_view(pick, weighted, rows) for pick in session.execute(stmt)]


def _view(pick: Any, weighted: Sequence[WeightedTask], rows: Mapping[int, int]) -> PickView:
    index = rows.get(pick.task_id)
    return PickView(
        sequence=pick.sequence,
        task=index,
        task_id=pick.task_id,
        task_name="" if index is None else weighted[index].name,
        n_trials=pick.n_trials,
        reason=str(pick.terms.get("reason", "")),
        why=explain(pick.terms),
        terms=pick.terms,
        done=pick.done,
        n_measured=pick.n_measured,
        n_failed=pick.n_failed,
        secs=pick.secs,
        total_latency_secs=pick.total_secs,
        created=pick.created,
    )
