"""Rows of the task scheduler table and jobs, as queries return them."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tuner.schemas import JobSummary, TaskView

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
_TASK = TaskView(
    id=0,
    task_id=7,
    workload="w" * 64,
    name="dense",
    weight=2,
    flop=4e6,
    gflops=0.0,
    share=0.0,
    trials=8,
    failed=0,
    exhausted=False,
    running=False,
)
_JOB = JobSummary(
    id=1,
    name="mlp",
    state="running",
    objective="weighted_sum",
    seed=0,
    priority=0,
    trials=64,
    spent_trials=64,
    spent_secs=61.0,
    n_events=1,
    from_service=True,
    created=MOMENT,
    updated=MOMENT,
)


def task_view(**fields: Any) -> TaskView:
    """Return a task without a best record, with some fields changed."""
    return replace(_TASK, **fields)


def job_summary(**fields: Any) -> JobSummary:
    """Return a running job, with some fields changed."""
    return replace(_JOB, **fields)
