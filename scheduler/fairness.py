"""Sharing of devices between jobs by priority: start-time fair queueing over device seconds.

Source: Goyal, Vin, Cheng, "Start-time Fair Queueing", SIGCOMM'96. Each job has a virtual
time that runs slower the higher its priority is; the job that is furthest behind goes next.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from scheduler.errors import SchedulerError

_MAX_DOUBLINGS = 30


class JobShare(NamedTuple):
    """State of one job when the next round is assigned.

    Attributes:
        job_id: Id of the job.
        priority: Priority; each step doubles the share of device time.
        virtual_secs: Virtual time, see :func:`charge` and :func:`join`.
        n_in_flight: Rounds of the job that are on devices now.
    """

    job_id: int
    priority: int
    virtual_secs: float
    n_in_flight: int = 0


def choose_job(jobs: Sequence[JobShare], *, typical_secs: float = 0.0) -> int | None:
    """Return the id of the job that gets the next round; None if there is no job.

    Args:
        jobs: Jobs that can use a round.
        typical_secs: Typical duration of a round, charged in advance for rounds in flight.

    Raises:
        SchedulerError: If a virtual time is negative or not finite.
    """
    chosen, least = None, (math.inf, 0)
    for job_id, priority, virtual_secs, n_in_flight in jobs:
        if not 0.0 <= virtual_secs < math.inf:
            raise SchedulerError(
                f"virtual_secs of job {job_id} must be finite and at least 0, got {virtual_secs}"
            )
        flying = n_in_flight * typical_secs / share_of(priority) if n_in_flight else 0.0
        behind = virtual_secs + flying, job_id
        if behind < least:
            chosen, least = job_id, behind
    return chosen


@lru_cache
def share_of(priority: int) -> float:
    """Return the share that a priority buys, 1 for priority 0."""
    return float(2.0 ** min(max(priority, -_MAX_DOUBLINGS), _MAX_DOUBLINGS))


def charge(job: JobShare, secs: float) -> float:
    """Return the virtual time of a job after a round of ``secs`` seconds."""
    return job.virtual_secs + max(secs, 0.0) / share_of(job.priority)


def join(virtual_secs: float, others: Sequence[JobShare]) -> float:
    """Return the virtual time of a job that starts or resumes.

    It starts level with the job furthest behind, so that it cannot claim time during which it
    did not run.
    """
    return max([virtual_secs, *([min(job.virtual_secs for job in others)] if others else [])])
