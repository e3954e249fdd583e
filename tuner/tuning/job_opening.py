"""Creation of a job's row, or the resumption of one with the same network, target and goal."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from records import jobs
from records.models import Job
from tuner.errors import RequestError
from tuner.jobs.preparation import Prepared
from tuner.tuning.session_options import SessionOptions

# Settings of the evaluator that change what a latency means.
_COMPARED_SETTINGS = ("cache_flush", "number")


def open_job(
    sessions: sessionmaker[Session],
    prepared: Prepared,
    options: SessionOptions,
    scheduler: Mapping[str, Any],
) -> Job:
    """Return the row of a job, created if there is none.

    Args:
        sessions: Factory of database sessions that write.
        prepared: Network, target and tasks.
        options: Options of the run.
        scheduler: Settings of the allocator.

    Raises:
        RequestError: If the records of the target were timed with other settings.
    """
    spec, budget = options.spec, options.budget
    evaluator = asdict(spec.evaluator)
    with sessions.begin() as session:
        _check_comparable(session, prepared.target_id, evaluator)
        new = jobs.NewJob(
            network_id=prepared.network_id,
            target_id=prepared.target_id,
            objective=spec.objective,
            priority=spec.priority or 0,
            seed=spec.seed,
            budget_trials=budget.trials,
            budget_secs=budget.secs,
            settings={
                "allocator": spec.allocator,
                "goal": spec.objective_options,
                "evaluator": evaluator,
                "search": asdict(options.search),
                "scheduler": dict(scheduler),
            },
            submission=options.submission,
        )
        return jobs.open_job(session, new)


def _check_comparable(session: Session, target_id: int, evaluator: Mapping[str, Any]) -> None:
    """Refuse to mix latencies that were measured in ways that do not compare.

    Raises:
        RequestError: If the records of this target were timed with other settings.
    """
    for settings in session.scalars(select(Job.settings).where(Job.target_id == target_id)):
        before = settings.get("evaluator", evaluator)
        for name in _COMPARED_SETTINGS:
            if before.get(name) != evaluator[name]:
                raise RequestError(
                    f"must be {before.get(name)}, with which the records of this target were "
                    f"timed; to time with {evaluator[name]}, use another database",
                    field=name,
                )
