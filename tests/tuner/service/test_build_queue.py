"""Builds that cannot be served say why."""

import asyncio

from records import attempts, builds, jobs, submissions
from tests.tuner.service.test_job_loader import submit
from tuner.context import Context
from tuner.devices.cpu_gate import CpuGate
from tuner.service.build_queue import BuildQueue
from tuner.service.limited_loading import ProcessLimits


async def serve(context: Context) -> bool:
    """Serve the next build."""
    limits = ProcessLimits(2**30)
    queue = BuildQueue(context, limits, CpuGate(), asyncio.Lock(), lambda _job, _activity: None)
    return await queue.serve_next()


def test_a_build_of_a_deleted_job_says_so(context: Context) -> None:
    """The build fails with a message that tells the client what to do."""
    job_id = submit(context)
    with context.sessions.begin() as session:
        jobs.set_state(session, job_id, "cancelled")
        build_id = builds.request_build(session, job_id).id
        submissions.hide(session, job_id)

    assert asyncio.run(serve(context))

    with context.sessions() as session:
        build = builds.get_build(session, build_id)
    assert build.state == "failed"
    assert (
        build.message == f"job {job_id} was deleted; submit it again and then request its library"
    )


def test_a_build_that_three_processes_died_over_is_quarantined(context: Context) -> None:
    """The next build is served; one that ends, even by failing, has no attempts left."""
    job_id = submit(context)
    with context.sessions.begin() as session:
        poison = builds.request_build(session, job_id).id
        builds.set_build(session, poison, "running", attempts=attempts.MAX_DEATHS)
        other = builds.request_build(session, job_id, model_index=7).id
        builds.set_build(session, other, "running", attempts=attempts.SUSPECT_DEATHS)

    assert asyncio.run(serve(context))

    with context.sessions() as session:
        quarantined, failed = (builds.get_build(session, each) for each in (poison, other))
    assert (quarantined.state, quarantined.quarantined) == ("failed", True)
    assert "died 3 times while building the library" in (quarantined.message or "")
    assert (failed.state, failed.quarantined, failed.attempts) == ("failed", False, 0)
    assert "no number 7" in (failed.message or "")
