"""Sharing of devices by priority: start-time fair queueing over device seconds.

Source: Goyal, Vin, Cheng, "Start-time Fair Queueing", SIGCOMM'96. Each job has a virtual
time that runs slower the higher its priority is; the job that is furthest behind goes next.
Owners have virtual times in the same way: the owner furthest behind goes next, with the job of
its own that is furthest behind. So an owner of many jobs gets no more than an owner of one.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from scheduler.errors import SchedulerError

_MAX_DOUBLINGS = 30

Item = TypeVar("Item")


class Turns:
    """Order of the owners of a queue: the one who was served longest ago comes first.

    It is kept in memory; a new process serves the oldest item first.
    """

    def __init__(self) -> None:
        self._served: dict[Hashable, int] = {}
        self._n_served = 0

    def ordered(self, items: Iterable[Item], owner_of: Callable[[Item], Hashable]) -> list[Item]:
        """Return items, sorted by the turn of their owners; equal ones keep their order."""
        return sorted(items, key=lambda item: self._served.get(owner_of(item), 0))

    def serve(self, owner: Hashable) -> None:
        """Note that an owner is served now."""
        self._n_served += 1
        self._served[owner] = self._n_served


class JobShare(NamedTuple):
    """State of one job when the next round is assigned.

    Attributes:
        priority: Priority; each step doubles the share of device time.
        virtual_secs: Virtual time, see :func:`charge` and :func:`join`.
        n_in_flight: Rounds of the job that are on devices now.
        owner: Owner of the job; jobs without one share the owner None.
    """

    job_id: int
    priority: int
    virtual_secs: float
    n_in_flight: int = 0
    owner: str | None = None


_NO_OWNERS: Mapping[str | None, float] = {}


def choose_job(
    jobs: Sequence[JobShare],
    owners: Mapping[str | None, float] = _NO_OWNERS,
    *,
    typical_secs: float = 0.0,
) -> int | None:
    """Return the id of the job that gets the next round; None if there is no job.

    Args:
        jobs: Jobs that can use a round.
        owners: Virtual times of the owners, see :class:`OwnerTimes`; a missing one is 0.
        typical_secs: Typical duration of a round, charged in advance for rounds in flight.

    Raises:
        SchedulerError: If a virtual time is negative or not finite.
    """
    chosen, least = None, math.inf
    behind_of = _owners_behind(jobs, owners, typical_secs)
    first = min(behind_of.values(), default=0.0)
    # Every round asks for hundreds of jobs: to compare tuples took a third of the time.
    for job_id, priority, virtual_secs, n_in_flight, owner in jobs:
        if not 0.0 <= virtual_secs < math.inf:
            raise SchedulerError(
                f"virtual_secs of job {job_id} must be finite and at least 0, got {virtual_secs}"
            )
        if behind_of and behind_of[owner] != first:
            continue
        behind = virtual_secs
        if n_in_flight:
            behind += n_in_flight * typical_secs / share_of(priority)
        if chosen is None or behind < least or (behind == least and job_id < chosen):
            chosen, least = job_id, behind
    return chosen


class OwnerTimes:
    """Virtual times of the owners of active jobs, in memory: a new process starts all at 0.

    Attributes:
        virtual_secs: Virtual time of each owner that had a job.
    """

    def __init__(self) -> None:
        self.virtual_secs: dict[str | None, float] = {}

    def join(self, owner: str | None, active: Sequence[JobShare]) -> None:
        """Let an owner start level with the one furthest behind, unless it has active jobs."""
        owners = {job.owner for job in active}
        if owner not in owners:
            least = min((self.virtual_secs.get(other, 0.0) for other in owners), default=0.0)
            self.virtual_secs[owner] = max(self.virtual_secs.get(owner, 0.0), least)

    def charge(self, job: JobShare, secs: float) -> None:
        """Charge the owner of a job for a round of ``secs`` seconds."""
        before = self.virtual_secs.get(job.owner, 0.0)
        self.virtual_secs[job.owner] = before + max(secs, 0.0) / share_of(job.priority)


def _owners_behind(
    jobs: Sequence[JobShare], owners: Mapping[str | None, float], typical_secs: float
) -> dict[str | None, float]:
    """Return the virtual times of owners with their rounds in flight; empty for one owner."""
    if len({job.owner for job in jobs}) < 2:
        return {}
    behind: dict[str | None, float] = {}
    for job in jobs:
        flying = job.n_in_flight * typical_secs / share_of(job.priority) if job.n_in_flight else 0.0
        behind[job.owner] = behind.get(job.owner, owners.get(job.owner, 0.0)) + flying
    return behind


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
