"""Creation of a job's row, or the resumption of one with the same network, target and goal."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from records import jobs, labels, targets
from records.models import Job
from records.service import submissions
from tuner.jobs.comparability import Incomparable, check_default, compared_settings
from tuner.jobs.preparation import Prepared
from tuner.tuning.job.session_options import SessionOptions


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
        Incomparable: If the trials of the target were timed with other settings.
        RequestError: If the job is of a command line, and the settings are not those of the
            service that the database belongs to.
    """
    spec, budget = options.spec, options.budget
    settings = compared_settings(spec.evaluator)
    with sessions.begin() as session:
        if not options.submission and submissions.has_any(session):
            check_default(spec.evaluator)
        for timed in map(compared_settings, targets.evaluators(session, prepared.target_id)):
            if timed != settings:
                raise Incomparable(timed, settings)
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
                "evaluator": asdict(spec.evaluator),
                "search": asdict(options.search),
                "scheduler": dict(scheduler),
                **({"command": options.command} if options.command else {}),
            },
            submission=options.submission,
        )
        job = jobs.open_job(session, new)
        if spec.tag and not options.submission:
            labels.edit(session, job.id, tags=spec.tag)
        return job
