"""Builds that cannot be served say why."""

from records import builds, jobs, submissions
from tests.tuner.service.test_job_loader import submit
from tuner.context import Context
from tuner.service.build_queue import BuildQueue
from tuner.service.loading import Limits


def test_a_build_of_a_deleted_job_says_so(context: Context) -> None:
    """What happened is no internal error."""
    job_id = submit(context)
    with context.sessions.begin() as session:
        jobs.set_state(session, job_id, "cancelled")
        build_id = builds.request_build(session, job_id).id
        submissions.hide(session, job_id)

    assert BuildQueue(context, Limits(2**30), lambda _job, _activity: None).serve_next()

    with context.sessions() as session:
        build = builds.get_build(session, build_id)
    assert build.state == "failed"
    assert build.message == f"job {job_id} was deleted; ask for it again and then for its library"
