"""The comparison of two jobs."""

from dataclasses import dataclass

from tuner.schemas.base import Schema
from tuner.schemas.jobs import JobSummary


@dataclass(frozen=True, kw_only=True)
class OwnTask(Schema):
    """A task as one job measured it itself: its calls, best latency and trials."""

    weight: int
    latency_secs: float | None = None
    trials: int = 0


@dataclass(frozen=True, kw_only=True)
class TaskComparison(Schema):
    """A workload of one of two jobs, or of both.

    Attributes:
        workload: Hash of the workload.
        name: Name for people.
        a: Task of the first job; None if it has none.
        b: Task of the second job; None if it has none.
        speedup: Latency of A divided by that of B; None unless both measured it.
        saved_secs: Time that B saves in one inference; None unless both measured it.
        faster: ``a``, ``b``, or ``equal`` within 1 %; empty while unknown.
    """

    workload: str
    name: str
    a: OwnTask | None = None
    b: OwnTask | None = None
    speedup: float | None = None
    saved_secs: float | None = None
    faster: str = ""


@dataclass(frozen=True, kw_only=True)
class JobComparison(Schema):
    """Two jobs, by the measurements of each.

    Attributes:
        a: First job.
        b: Second job.
        a_secs: Latency of its network after the last round of A; None while unknown.
        b_secs: Latency of its network after the last round of B; None while unknown.
        verdict: Result in a sentence.
        tasks: Workloads, the largest differences of the latency first.
    """

    a: JobSummary
    b: JobSummary
    a_secs: float | None = None
    b_secs: float | None = None
    verdict: str
    tasks: list[TaskComparison]
