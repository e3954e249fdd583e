"""Quotas: what one owner may have at a time, and send in a day."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from records.errors import QuotaExceeded
from records.models import Job, now
from records.service.service_models import ApiToken, Build, Upload

_UPLOAD_WINDOW = timedelta(days=1)
_MIB = 2**20
_ACTIVE = ("queued", "running")


class _Kind(NamedTuple):
    """Description of a quota in messages; ``waiting_helps`` if its use falls by itself."""

    text: str
    waiting_helps: bool


_KINDS = {
    "jobs": _Kind("queued and running jobs and builds", True),
    "trials": _Kind("trials in the limits of queued and running jobs", True),
    "seconds": _Kind("seconds in the limits of queued and running jobs", True),
    "upload_mb": _Kind("MiB of models sent within a day", True),
    "disk_mb": _Kind("MiB of models and archives of existing jobs", False),
}


@dataclass(frozen=True)
class Quotas:
    """Limits of one owner; None is unlimited.

    Attributes:
        jobs: Queued and running jobs and builds.
        trials: Sum of the limits of queued and running jobs, trials.
        seconds: Sum of the limits of queued and running jobs, seconds.
        upload_mb: Models sent within a day, MiB.
        disk_mb: Models and archives of the jobs that are not deleted, MiB.
    """

    jobs: float | None = None
    trials: float | None = None
    seconds: float | None = None
    upload_mb: float | None = None
    disk_mb: float | None = None

    def with_changes(self, changes: Mapping[str, Any] | None) -> "Quotas":
        """Return these quotas with some replaced; unknown names are ignored."""
        return replace(self, **{k: v for k, v in (changes or {}).items() if k in _KINDS})


@dataclass(frozen=True)
class Usage:
    """Use of each quota by an owner; see :class:`Quotas`."""

    jobs: float
    trials: float
    seconds: float
    upload_mb: float
    disk_mb: float


def parse(text: str) -> dict[str, float | None]:
    """Read quotas such as ``jobs=20,trials=100000,disk_mb=none``.

    Raises:
        ValueError: If a name is unknown, or a value is neither a number of at least 0 nor none.
    """
    quotas: dict[str, float | None] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = item.partition("=")
        if name.strip() not in _KINDS:
            raise ValueError(f"quotas are {', '.join(_KINDS)}, got {name.strip()!r}")
        quotas[name.strip()] = _limit(name.strip(), value.strip())
    return quotas


def usage(session: Session, owner: str) -> Usage:
    """Return what an owner uses of its quotas."""
    n_jobs, trials, seconds = session.execute(
        select(func.count(), func.sum(Job.budget_trials), func.sum(Job.budget_secs)).where(
            Job.owner == owner, Job.submission != "", Job.state.in_(_ACTIVE)
        )
    ).one()
    n_builds = session.scalar(
        select(func.count())
        .select_from(Build)
        .join(Job, Job.id == Build.job_id)
        .where(Job.owner == owner, Build.state.in_(_ACTIVE))
    )
    models = (
        select(Upload.sha256, func.max(Upload.n_bytes).label("n_bytes"))
        .join(Job, Job.id == Upload.job_id)
        .where(Job.owner == owner, ~Job.hidden)
        .group_by(Upload.sha256)
        .subquery()
    )
    archives = (
        select(Build.archive, func.max(Build.n_bytes).label("n_bytes"))
        .join(Job, Job.id == Build.job_id)
        .where(Job.owner == owner, ~Job.hidden, Build.archive.is_not(None))
        .group_by(Build.archive)
        .subquery()
    )
    stored = int(session.scalar(select(func.sum(models.c.n_bytes))) or 0) + int(
        session.scalar(select(func.sum(archives.c.n_bytes))) or 0
    )
    return Usage(
        jobs=n_jobs + (n_builds or 0),
        trials=float(trials or 0),
        seconds=float(seconds or 0),
        upload_mb=_sent_bytes(session, owner) / _MIB,
        disk_mb=stored / _MIB,
    )


def of_owner(session: Session, owner: str, defaults: Quotas) -> Quotas:
    """Return the quotas of a token: its own, and those of the service for the others."""
    own = session.scalar(select(ApiToken.quotas).where(ApiToken.name == owner))
    return defaults.with_changes(own)


@contextmanager
def enforced(
    session: Session, owner: str, defaults: Quotas, *, fills_disk_later: bool = False
) -> Iterator[None]:
    """Check the quotas of an owner around a change; a change that uses no more is allowed.

    Changes of one owner follow one another, so that two requests at once cannot share a gap.

    Args:
        session: The transaction; roll it back if this raises.
        owner: Name of the token.
        defaults: Quotas of the service; those of the token replace them.
        fills_disk_later: True for a change whose use of the disk is not known yet; it needs a
            quota that is not used up.

    Raises:
        QuotaExceeded: If the change exceeds a quota.
    """
    session.execute(select(ApiToken.id).where(ApiToken.name == owner).with_for_update())
    quotas = of_owner(session, owner, defaults)
    limits = {name: limit for name, limit in asdict(quotas).items() if limit is not None}
    if not limits:
        yield
        return
    before, n_unbounded = usage(session, owner), _count_unbounded(session, owner, limits)
    n_unlimited = _count_unlimited(session, owner)
    if fills_disk_later and before.disk_mb >= limits.get("disk_mb", float("inf")):
        raise _exceeded("disk_mb", limits["disk_mb"], before.disk_mb, 0.0)
    yield
    session.flush()
    if _count_unbounded(session, owner, limits) > n_unbounded:
        name, other = ("trials", "seconds") if "trials" in limits else ("seconds", "trials")
        message = f"there is a quota of {name}: limit {name} as well as {other}"
        raise QuotaExceeded(message, name, waiting_helps=False)
    is_full = before.trials >= limits.get("trials", float("inf"))
    if is_full and _count_unlimited(session, owner) > n_unlimited:
        # The trials of a job without limits count once its tasks are known.
        raise _exceeded("trials", limits["trials"], before.trials, 0.0)
    after = usage(session, owner)
    for name, limit in limits.items():
        used, more = getattr(after, name), getattr(after, name) - getattr(before, name)
        if used > limit and more > 0:
            raise _exceeded(name, limit, used - more, more)


def check_upload(session: Session, owner: str, defaults: Quotas, n_bytes: int) -> None:
    """Check quotas against an announced upload, before it is received.

    Raises:
        QuotaExceeded: If it cannot fit, whatever it holds. A model that the owner has stored
            already needs no more of the disk, so that only its size is compared with that quota.
    """
    quotas, sent = of_owner(session, owner, defaults), _sent_bytes(session, owner) / _MIB
    more = n_bytes / _MIB
    if quotas.upload_mb is not None and sent + more > quotas.upload_mb:
        raise _exceeded("upload_mb", quotas.upload_mb, sent, more)
    if quotas.disk_mb is not None and more > quotas.disk_mb:
        raise _exceeded("disk_mb", quotas.disk_mb, 0.0, more)


def add_upload(
    session: Session,
    job_id: int,
    owner: str | None,
    sha256: str,
    n_bytes: int,
    *,
    sent: bool = True,
) -> Upload:
    """Store a model of a job; ``sent`` is False if it was there before."""
    row = Upload(job_id=job_id, owner=owner, sha256=sha256, n_bytes=n_bytes, sent=sent)
    session.add(row)
    session.flush()
    return row


def _count_unbounded(session: Session, owner: str, limits: Mapping[str, float]) -> int:
    """Count active jobs without a limit of the only kind, trials or seconds, that has a quota.

    A job without any limit gets some trials for each task, and no seconds.
    """
    if ("trials" in limits) == ("seconds" in limits):
        return 0
    columns = (Job.budget_trials, Job.budget_secs)
    bounded, other = columns if "trials" in limits else columns[::-1]
    has_other = () if "seconds" in limits else (other.is_not(None),)
    return _count_active(session, owner, bounded.is_(None), *has_other)


def _count_unlimited(session: Session, owner: str) -> int:
    """Count active jobs without a limit."""
    return _count_active(session, owner, Job.budget_trials.is_(None), Job.budget_secs.is_(None))


def _count_active(session: Session, owner: str, *conditions: ColumnElement[bool]) -> int:
    stmt = select(func.count()).where(
        Job.owner == owner, Job.submission != "", Job.state.in_(_ACTIVE), *conditions
    )
    return session.scalar(stmt) or 0


def _exceeded(name: str, limit: float, used: float, more: float) -> QuotaExceeded:
    kind = _KINDS[name]
    message = f"the quota is {limit:g} {kind.text}: {used:g} are in use, and this needs {more:g}"
    return QuotaExceeded(message, name, waiting_helps=kind.waiting_helps and more <= limit)


def _sent_bytes(session: Session, owner: str) -> int:
    """Sum up the models that an owner sent within the window of the quota."""
    stmt = select(func.sum(Upload.n_bytes)).where(
        Upload.owner == owner, Upload.sent, Upload.created > now() - _UPLOAD_WINDOW
    )
    return int(session.scalar(stmt) or 0)


def _limit(name: str, text: str) -> float | None:
    if text.lower() == "none":
        return None
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < float("inf"):
        raise ValueError(f"the quota {name} must be a number of at least 0, or none; got {text!r}")
    return limit
