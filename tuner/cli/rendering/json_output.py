"""Jobs as ``--json`` prints them."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tuner.schemas import JobComparison, JobSummary, JobView, PickView, TaskView


def tasks_as_json(tasks: Sequence[TaskView]) -> list[dict[str, Any]]:
    """Return the rows of a task scheduler table as plain data."""
    hidden = ("id", "task_id", "gradient", "running", "last_pick")
    return [
        {"task": task.task_id}
        | {name: value for name, value in vars(task).items() if name not in hidden}
        for task in tasks
    ]


def job_as_json(job: JobSummary) -> dict[str, Any]:
    """Return a job of a list as plain data."""
    return {
        "job": job.id,
        "name": job.name,
        "state": job.state,
        "message": job.message,
        "quarantined": job.quarantined,
        "network": job.network,
        "target": job.target,
        "device": job.device,
        "objective": job.objective,
        "priority": job.priority,
        "total_latency_secs": job.total_latency_secs,
        "trials": job.trials,
        "budget_trials": job.budget_trials,
        "spent_secs": job.spent_secs,
        "budget_secs": job.budget_secs,
        "owner": job.owner,
        "project": job.project,
        "tags": job.tags,
        "note": job.note,
        "created": job.created.isoformat(),
        "updated": job.updated.isoformat(),
    }


def comparison_as_json(compared: JobComparison) -> dict[str, Any]:
    """Return a comparison of two jobs as plain data."""
    jobs = {"a": job_as_json(compared.a), "b": job_as_json(compared.b)}
    return {**vars(compared), **jobs, "tasks": [asdict(task) for task in compared.tasks]}


def table_as_json(view: JobView, picks: Sequence[PickView]) -> dict[str, Any]:
    """Return the table of a job, and some of its picks, as plain data."""
    job, split = view.job, view.split
    return {
        "job": job.id,
        "network": job.network,
        "sha256": split and split.sha256,
        "target": job.target,
        "device": split and split.device,
        "state": job.state,
        "message": job.message,
        "objective": job.objective,
        "seed": job.seed,
        "budget_trials": job.budget_trials,
        "budget_secs": job.budget_secs,
        "spent_trials": job.spent_trials,
        "spent_secs": job.spent_secs,
        "created": job.created.isoformat(),
        "updated": job.updated.isoformat(),
        "total_latency_secs": job.total_latency_secs,
        "untuned_latency_secs": view.untuned_latency_secs,
        "trials": sum(task.trials for task in view.tasks),
        "tasks": tasks_as_json(view.tasks),
        "outlook": view.outlook and vars(view.outlook),
        "last_pick": view.last_pick and _pick_as_json(view, view.last_pick),
        "picks": [_pick_as_json(view, pick) for pick in picks],
    }


def _pick_as_json(view: JobView, pick: PickView) -> dict[str, Any]:
    return {
        "sequence": pick.sequence,
        "task": pick.task_id,
        "workload": None if pick.task is None else view.tasks[pick.task].workload,
        "trials": pick.n_trials,
        "done": pick.done,
        "created": pick.created.isoformat(),
        "reason": pick.reason or None,
        "why": pick.why,
        "terms": {name: value for name, value in pick.terms.items() if name != "reason"},
    }
