"""Builds that cannot be served say why."""

import asyncio

from records import builds, jobs, submissions
from tests.tuner.service.test_job_loader import submit
from tuner.context import Context
from tuner.devices.cpu_gate import CpuGate
from tuner.service.build_queue import BuildQueue
from tuner.service.limited_loading import ProcessLimits


def test_a_build_of_a_deleted_job_says_so(context: Context) -> None:
    """The build fails with a message that tells the client what to do."""
    job_id = submit(context)
    with context.sessions.begin() as session:
        jobs.set_state(session, job_id, "cancelled")
        build_id = builds.request_build(session, job_id).id
        submissions.hide(session, job_id)

    async def serve() -> bool:
        queue = BuildQueue(context, ProcessLimits(2**30), CpuGate(), lambda _job, _activity: None)
        return await queue.serve_next()

    assert asyncio.run(serve())

    with context.sessions() as session:
        build = builds.get_build(session, build_id)
    assert build.state == "failed"
    assert (
        build.message == f"job {job_id} was deleted; submit it again and then request its library"
    )
