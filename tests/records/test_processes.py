"""Workers, builds and the audit log."""

from datetime import timedelta

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from records.errors import NoSuchRow
from records.models import now
from records.service import builds, workers
from records.service.owners import audit
from records.service.service_models import Worker
from records.tuning import events
from tests.records import make


def _report(name: str = "host:1", **changes: object) -> workers.WorkerReport:
    fields: dict[str, object] = {"host": "host", "pid": 1, "role": "active", "activity": "idle"}
    return workers.WorkerReport(name=name, **{**fields, **changes})  # type: ignore[arg-type]


def test_a_report_replaces_the_one_before(session: Session) -> None:
    """The start time of the process stays."""
    workers.report(session, _report())
    started = session.query(Worker).one().started
    workers.report(session, _report(activity="measuring", busy_share=0.5))
    session.expire_all()

    (worker,) = workers.list_workers(session)

    assert (worker.activity, worker.busy_share, worker.started) == ("measuring", 0.5, started)
    assert workers.is_alive(worker)


def test_a_worker_without_heartbeats_is_not_alive(session: Session) -> None:
    """Neither is a stopped worker, which has no job."""
    workers.report(session, _report("a:1"))
    workers.report(session, _report("b:2", job_id=make.job(session)))
    long_ago = now() - timedelta(minutes=5)
    session.execute(update(Worker).where(Worker.name == "a:1").values(heartbeat=long_ago))
    workers.stop(session, "b:2")
    session.expire_all()

    rows = {worker.name: worker for worker in workers.list_workers(session)}

    assert not any(workers.is_alive(worker) for worker in rows.values())
    assert rows["b:2"].job_id is None
    recent = workers.list_workers(session, seen_within=timedelta(minutes=1))
    assert [worker.name for worker in recent] == ["b:2"]


def test_a_queued_build_is_returned_again(session: Session) -> None:
    """While it runs, another can be requested, because better records may exist by then."""
    job_id = make.job(session)
    first = builds.request_build(session, job_id)
    assert builds.request_build(session, job_id).id == first.id
    assert builds.request_build(session, job_id, strict=True).id != first.id
    builds.set_build(session, first.id, "running")

    second = builds.request_build(session, job_id)

    assert second.id != first.id
    assert builds.waiting(session)[0].build is first  # it may have been left by a process that died
    builds.set_build(session, first.id, "done", sha256="abc")
    latest = builds.latest_build(session, job_id, state="done")
    assert latest is not None
    assert (latest.id, latest.sha256) == (first.id, "abc")
    assert [build.id for build in builds.builds_of(session, job_id)][-1] == first.id
    states = [e.data["state"] for e in events.events_after(session, job_id, 0) if e.kind == "build"]
    assert states == ["queued", "queued", "running", "queued", "done"]


def test_an_unknown_build_raises(session: Session) -> None:
    """An unknown build id is an error."""
    with pytest.raises(NoSuchRow, match="no build 9"):
        builds.set_build(session, 9, "done")


def test_the_audit_log_is_read_backwards(session: Session) -> None:
    """Pages and the actions on one job are ordered, the newest first."""
    job_id = make.job(session)
    for number in range(3):
        audit.log_action(session, "ci", "127.0.0.1", f"action {number}")
    audit.log_action(session, "ci", "::1", "cancel", job_id, {"was": "running", "x": float("nan")})

    newest, *_ = audit.actions(session)

    assert (newest.action, newest.detail) == ("cancel", {"was": "running", "x": None})
    assert [row.action for row in audit.actions(session, before=newest.id, limit=2)] == [
        "action 2",
        "action 1",
    ]
    assert audit.actions(session, job_id=job_id) == [newest]
