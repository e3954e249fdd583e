"""Quotas bound what an owner has at a time, and say whether waiting helps."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from records import jobs
from records.errors import QuotaExceeded
from records.models import Job, now
from records.service import builds, submissions
from records.service.owners import quotas, tokens
from records.service.owners.quotas import Quotas
from tests.records.service.test_submissions import submission_of

MIB = 2**20


def request(session: Session, name: str, **changes: Any) -> Job:
    """Store a job of ada."""
    return submissions.submit(session, submission_of(name, owner="ada", **changes))[0]


@pytest.mark.parametrize(
    ("limits", "first", "second", "waiting_helps"),
    [
        ({"jobs": 1}, {}, {}, True),
        ({"jobs": 0}, None, {}, False),
        ({"trials": 15}, {}, {}, True),  # ten trials each
        ({"trials": 5}, None, {}, False),
        ({"seconds": 15}, {"budget_secs": 10.0}, {"budget_secs": 10.0}, True),
        ({"seconds": 5}, None, {"budget_secs": 10.0}, False),
        # A quota of trials would bound nothing if a job could limit its seconds alone.
        ({"trials": 500}, {}, {"budget_trials": None, "budget_secs": 10.0}, False),
        # A job without limits has trials only, and as many as its tasks need.
        ({"seconds": 500}, None, {"budget_trials": None}, False),
        ({"trials": 10}, {}, {"budget_trials": None}, True),
    ],
)
def test_a_request_over_a_quota_is_refused(
    session: Session,
    limits: dict[str, float],
    first: dict[str, Any] | None,
    second: dict[str, Any],
    waiting_helps: bool,
) -> None:
    """It names the quota, and whether the same request fits once other jobs end."""
    quota = Quotas(**limits)
    if first is not None:
        with quotas.enforced(session, "ada", quota):
            request(session, "first", **first)

    with pytest.raises(QuotaExceeded) as refused, quotas.enforced(session, "ada", quota):
        request(session, "second", **second)
    assert refused.value.quota in limits
    assert refused.value.waiting_helps is waiting_helps


def test_quotas_are_those_of_one_owner_and_of_active_jobs(session: Session) -> None:
    """Ended jobs and jobs of others do not count; the same request again needs nothing more."""
    quota = Quotas(jobs=1, trials=100)
    other = submission_of("other", owner="bob")
    submissions.submit(session, other)
    with quotas.enforced(session, "ada", quota):
        job = request(session, "first")
    with quotas.enforced(session, "ada", quota):
        assert request(session, "first").id == job.id
    jobs.set_state(session, job.id, "done")
    with quotas.enforced(session, "ada", quota):
        request(session, "second")

    assert quotas.usage(session, "ada").jobs == 1
    with pytest.raises(QuotaExceeded), quotas.enforced(session, "ada", quota):
        jobs.set_state(session, job.id, "queued")


def test_builds_count_as_jobs(session: Session) -> None:
    """A queued build uses the quota of jobs until it ends."""
    job = request(session, "a")
    jobs.set_state(session, job.id, "done")
    build = builds.request_build(session, job.id)
    assert quotas.usage(session, "ada").jobs == 1

    builds.set_build(session, build.id, "done")
    assert quotas.usage(session, "ada").jobs == 0


def test_uploads_count_for_a_day(session: Session) -> None:
    """Every upload of the last day counts, also the same model again."""
    quota = Quotas(upload_mb=5)
    job = request(session, "a")
    for _ in range(2):
        with quotas.enforced(session, "ada", quota):
            upload = quotas.add_upload(session, job.id, "ada", "x" * 64, 2 * MIB)
    with pytest.raises(QuotaExceeded) as refused, quotas.enforced(session, "ada", quota):
        quotas.add_upload(session, job.id, "ada", "y" * 64, 2 * MIB)
    assert refused.value.waiting_helps
    session.expunge_all()
    upload = session.get_one(type(upload), upload.id)
    upload.created = now() - timedelta(days=1, minutes=1)
    session.flush()

    assert quotas.usage(session, "ada").upload_mb == pytest.approx(4.0)


def test_the_disk_holds_models_and_archives_of_existing_jobs(session: Session) -> None:
    """A model of two jobs counts once, and deleting both frees it; waiting frees nothing."""
    rows = [request(session, name) for name in "ab"]
    for job in rows:
        quotas.add_upload(session, job.id, "ada", "x" * 64, 3 * MIB)
    build = builds.request_build(session, rows[0].id)
    builds.set_build(session, build.id, "done", archive="k.tar.gz", n_bytes=MIB)
    assert quotas.usage(session, "ada").disk_mb == 4.0

    with (
        pytest.raises(QuotaExceeded) as refused,
        quotas.enforced(session, "ada", Quotas(disk_mb=5)),
    ):
        quotas.add_upload(session, rows[0].id, "ada", "y" * 64, 2 * MIB)
    assert not refused.value.waiting_helps
    later = quotas.enforced(session, "ada", Quotas(disk_mb=5), fills_disk_later=True)
    with pytest.raises(QuotaExceeded), later:
        pass
    for job in rows:
        job.hidden = True
    session.flush()
    assert quotas.usage(session, "ada").disk_mb == 0.0


def test_a_token_has_quotas_of_its_own(session: Session) -> None:
    """They replace those of the service, and none removes one."""
    own = quotas.parse("jobs=7, trials=none")
    tokens.create_token(session, "ada", ["submit"], quotas=own)

    defaults = Quotas(jobs=1, trials=5, disk_mb=9)
    assert quotas.of_owner(session, "ada", defaults) == Quotas(jobs=7, disk_mb=9)
    assert quotas.of_owner(session, "bob", defaults) == defaults


@pytest.mark.parametrize("text", ["cores=1", "jobs", "jobs=many", "jobs=-1", "trials=inf"])
def test_malformed_quotas_are_refused(text: str) -> None:
    """A misspelt quota would bound nothing."""
    with pytest.raises(ValueError, match="quota"):
        quotas.parse(text)
