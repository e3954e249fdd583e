"""Profiles on the pages of jobs: judged by what the database knows, and read back."""

import json
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from records import jobs, targets, tasks
from records.models import Job, Network, Target
from records.tuning import profiles
from tuner.errors import RequestError
from tuner.profiling.kernel_profiles import read_facts
from tuner.profiling.page import bars_of
from tuner.profiling.results import LibraryProfile, StoredProfile, as_json, from_json
from tuner.profiling.verdicts import NetworkFacts

# Names of nodes that a profile may repeat, once for each part of the work that peers share.
_MAX_NAMES = 100_000
# Trials of each task that the command of a verdict adds, as the budget of a job without a limit.
_MORE_TRIALS = 64


def store_profile(session: Session, job: Job, profile: LibraryProfile) -> StoredProfile:
    """Store the profile of a job's library with verdicts by the facts of this database.

    Args:
        job: The job, whose owner's jobs on the same network and target show it.
        profile: Profile of any machine with a device of the job's target.

    Raises:
        RequestError: If the profile is of another network or device, or contradicts itself.
    """
    known = tasks.tasks_of_job(session, job)
    if job.network_id is None or job.target_id is None:
        raise RequestError(f"the network of job {job.id} is not split into tasks yet")
    is_own = session.get_one(Network, job.network_id).sha256 == profile.network
    if not (is_own or _is_of_part(session, job, profile.network)):
        raise RequestError(
            f"the profile is not of a library of job {job.id}, but of another model, or of a "
            "library that another version of the tuner built: build it again"
        )
    if not _is_of_target(session.get_one(Target, job.target_id), profile):
        raise RequestError(
            f"the profile is of {profile.device.get('name', 'a device without a name')}, built by "
            f"{_versions(profile)}, and job {job.id} is for another device or compiler"
        )
    trials = (job.budget_trials or 0) + _MORE_TRIALS * len(known)
    command = f"tuner jobs budget {job.id} --trials {trials}"
    content = _judged(profile, read_facts(session, known), command)
    profiles.store_profile(session, job.network_id, job.target_id, content, job.owner or "")
    stored = read_profile(session, job.id)
    if stored is None:
        raise RequestError("the profile cannot be stored")
    return stored


def _is_of_part(session: Session, job: Job, network: str) -> bool:
    """Return whether a job is for several networks and this is one, or for some tasks of this."""
    own = session.get_one(Network, job.network_id)
    of_profile = session.scalar(select(Network.id).where(Network.sha256 == network))
    if own.inputs or of_profile is None or job.target_id is None:
        return False
    of_job, of_library = (
        {task.task_id for task in tasks.weighted_tasks(session, each, job.target_id)}
        for each in (own.id, of_profile)
    )
    return bool(of_library) and (of_library <= of_job or of_job <= of_library)


def _is_of_target(target: Target, profile: LibraryProfile) -> bool:
    return target.fingerprint == targets.fingerprint(profile.target, dict(profile.device))


def _versions(profile: LibraryProfile) -> str:
    return ", ".join(f"{name} {profile.device[name]}" for name in sorted(profile.device))


def _judged(profile: LibraryProfile, facts: NetworkFacts, command: str) -> dict[str, Any]:
    """Return a profile with verdicts as plain data that a database can store and pages show.

    Raises:
        RequestError: If its parts do not fit together, or it is too large.
    """
    if any(kernel.n_calls < 1 for kernel in profile.kernels):
        raise RequestError("the profile contradicts itself: a kernel has no call")
    try:
        works = [work for peer in profile.peers for work in peer.shared]
        if (
            sum(len(profile.calls[call].nodes) for work in works for call in work.calls)
            > _MAX_NAMES
        ):
            raise RequestError(f"the profile repeats more than {_MAX_NAMES:,} names of nodes")
        bars_of(profile)
        content = as_json(profile.judged(facts, command))
        json.dumps(content, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, KeyError, IndexError, ArithmeticError, RecursionError) as error:
        raise RequestError(f"the profile contradicts itself: {error}") from error
    return content


def read_profile(session: Session, job_id: int) -> StoredProfile | None:
    """Return the last profile of a job's library; None if this version cannot read one.

    Raises:
        NoSuchRow: If the job does not exist.
    """
    job = jobs.get_job(session, job_id)
    if job.network_id is None or job.target_id is None:
        return None
    row = profiles.profile_of(session, job.network_id, job.target_id, job.owner or "")
    if row is None:
        return None
    try:
        return StoredProfile(row.created, from_json(row.content))
    except ValueError:
        return None
