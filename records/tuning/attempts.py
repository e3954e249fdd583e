"""Attempts at work that ends with its process, and the quarantine of work that did so thrice.

``attempts`` of a job, a build or a pick counts how often a process began to load or finish it, to
build it, or to run its round, without an end: while nothing works on it, the number of processes
that died over it. An orderly end, an error included, takes the attempt back, and a trial clears
those of its pick. A process that lost its database takes its attempts back when it has one again.
"""

from collections.abc import Sequence

from sqlalchemy import bindparam, case, update
from sqlalchemy.orm import Session

from records import jobs
from records.models import Job, Pick
from records.service import builds
from records.service.service_models import Build
from records.storage.upsert import table
from records.tuning import events

MAX_DEATHS = 3
# From this number of deaths on, work is done apart from all other work under suspicion, so that the
# next death tells which of it is to blame.
SUSPECT_DEATHS = 2


def reason_of(work: str) -> str:
    """Return the reason of a quarantine.

    Args:
        work: Work that the process died over, such as "loading the model".
    """
    return (
        f"quarantined: the worker's process died {MAX_DEATHS} times while {work}; its log and the "
        "kernel's say why. An administrator releases it"
    )


def begin_job(session: Session, job_id: int) -> None:
    """Count that a process begins to load a job, or to confirm its winners."""
    session.execute(_MORE_OF_JOB, {"of_job": job_id, "more": 1})


def end_job(session: Session, job_id: int, *, clear: bool = False) -> None:
    """Take the last attempt at a job back, or with ``clear`` all of them."""
    if clear:
        session.execute(_CLEAR_JOB, {"of_job": job_id})
    else:
        session.execute(_MORE_OF_JOB, {"of_job": job_id, "more": -1})


def begin_again(session: Session, build_id: int) -> bool:
    """Count another attempt at a build; False if it does not run any more."""
    return session.execute(_MORE_OF_BUILD, {"of_build": build_id}).first() is not None


def end_build(session: Session, build_id: int) -> None:
    """Take the last attempt at a build back."""
    session.execute(_LESS_OF_BUILD, {"of_build": build_id})


def begin_rounds(session: Session, pick_ids: Sequence[int]) -> None:
    """Count that a process begins the rounds of picks again."""
    # Picks are updated in the order of their ids, so that two writers never deadlock.
    rows = [{"of_pick": pick_id, "more": 1} for pick_id in sorted(pick_ids)]
    session.execute(_MORE_OF_PICK, rows)


def end_rounds(session: Session, pick_ids: Sequence[int]) -> None:
    """Take back the last attempt at the rounds of picks that stay open."""
    rows = [{"of_pick": pick_id, "more": -1} for pick_id in sorted(pick_ids)]
    session.execute(_MORE_OF_PICK, rows)


def clear_rounds(session: Session, job_id: int) -> None:
    """Take back the attempts at the open rounds of a job."""
    session.execute(_CLEAR_ROUNDS, {"of_job": job_id})


def quarantine_job(session: Session, job_id: int, work: str) -> None:
    """Fail a job until :func:`release`; see :func:`reason_of`.

    Raises:
        NoSuchRow: If the job does not exist.
    """
    job = jobs.locked(session, job_id)
    job.quarantined = True
    session.flush()
    jobs.set_state(session, job_id, "failed", reason_of(work))


def quarantine_build(session: Session, build_id: int) -> None:
    """Fail a build until its job is released.

    Raises:
        NoSuchRow: If the build does not exist.
    """
    message = reason_of("building the library")
    builds.set_build(session, build_id, "failed", message=message, quarantined=True)


def release(session: Session, job_id: int) -> bool:
    """Queue a quarantined job and its quarantined builds again, without their earlier attempts.

    Returns:
        False if neither the job nor one of its builds is quarantined.

    Raises:
        NoSuchRow: If the job does not exist.
    """
    job = jobs.locked(session, job_id)
    released = session.execute(_RELEASE_BUILDS, {"of_job": job_id}).all()
    for (build_id,) in released:
        data = {"build": build_id, "state": "queued", "message": None}
        events.add_event(session, job_id, "build", data)
    if not job.quarantined:
        return bool(released)
    job.quarantined, job.attempts = False, 0
    clear_rounds(session, job_id)
    session.flush()
    jobs.set_state(session, job_id, "queued", only_from=("failed",))
    return True


# Statements are built once: building takes longer than the database takes to answer.
_JOB, _PICK, _BUILD = table(Job), table(Pick), table(Build)
_MORE_OF_JOB = (
    update(_JOB)
    .where(_JOB.c.id == bindparam("of_job"))
    .values(
        attempts=case(
            (_JOB.c.attempts + bindparam("more") > 0, _JOB.c.attempts + bindparam("more")), else_=0
        )
    )
)
_CLEAR_JOB = update(_JOB).where(_JOB.c.id == bindparam("of_job")).values(attempts=0)
_MORE_OF_PICK = (
    update(_PICK)
    .where(_PICK.c.id == bindparam("of_pick"))
    .values(
        attempts=case(
            (_PICK.c.attempts + bindparam("more") > 0, _PICK.c.attempts + bindparam("more")),
            else_=0,
        )
    )
)
_MORE_OF_BUILD = (
    update(_BUILD)
    .where(_BUILD.c.id == bindparam("of_build"), _BUILD.c.state == "running")
    .values(attempts=_BUILD.c.attempts + 1)
    .returning(_BUILD.c.id)
)
_LESS_OF_BUILD = (
    update(_BUILD)
    .where(_BUILD.c.id == bindparam("of_build"), _BUILD.c.attempts > 0)
    .values(attempts=_BUILD.c.attempts - 1)
)
_CLEAR_ROUNDS = (
    update(_PICK)
    .where(_PICK.c.job_id == bindparam("of_job"), ~_PICK.c.done, _PICK.c.attempts > 0)
    .values(attempts=0)
)
_RELEASE_BUILDS = (
    update(_BUILD)
    .where(_BUILD.c.job_id == bindparam("of_job"), _BUILD.c.quarantined)
    .values(state="queued", message=None, quarantined=False, attempts=0)
    .returning(_BUILD.c.id)
)
