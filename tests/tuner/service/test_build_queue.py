"""Builds that cannot be served say why."""

import asyncio

from records import attempts, builds, jobs, submissions
from tests.tuner.service.test_job_loader import submit
from tuner.context import Context
from tuner.executors.local import LocalExecutor
from tuner.service.build_queue import BuildQueue
from tuner.service.limited_loading import ProcessLimits
from tuner.tuning.context import TuningContext


async def serve(context: Context, workers: LocalExecutor, *, turn_is_taken: bool = False) -> bool:
    """Serve the next build."""
    limits = ProcessLimits(2**30)
    tuning = TuningContext(context.sessions, workers, context.settings.data_dir)
    assert not turn_is_taken or tuning.suspect_turn.try_take()
    queue = BuildQueue(context, limits, tuning, lambda _job, _activity: None)
    served = await queue.serve_next()
    assert tuning.suspect_turn.try_take() == (not turn_is_taken)
    return served


def test_a_build_of_a_deleted_job_says_so(context: Context, workers: LocalExecutor) -> None:
    """The build fails with a message that tells the client what to do."""
    job_id = submit(context)
    with context.sessions.begin() as session:
        jobs.set_state(session, job_id, "cancelled")
        build_id = builds.request_build(session, job_id).id
        submissions.hide(session, job_id)

    assert asyncio.run(serve(context, workers))

    with context.sessions() as session:
        build = builds.get_build(session, build_id)
    assert build.state == "failed"
    assert (
        build.message == f"job {job_id} was deleted; submit it again and then request its library"
    )


def test_a_build_that_three_processes_died_over_is_quarantined(
    context: Context, workers: LocalExecutor
) -> None:
    """The next build is served; one that ends, even by failing, has no attempts left."""
    job_id = submit(context)
    with context.sessions.begin() as session:
        poison = builds.request_build(session, job_id).id
        builds.set_build(session, poison, "running", attempts=attempts.MAX_DEATHS)
        other = builds.request_build(session, job_id, model_index=7).id
        builds.set_build(session, other, "running", attempts=attempts.SUSPECT_DEATHS)

    assert asyncio.run(serve(context, workers))

    with context.sessions() as session:
        quarantined, failed = (builds.get_build(session, each) for each in (poison, other))
    assert (quarantined.state, quarantined.quarantined) == ("failed", True)
    assert "died 3 times while building the library" in (quarantined.message or "")
    assert (failed.state, failed.quarantined, failed.attempts) == ("failed", False, 0)
    assert "no number 7" in (failed.message or "")


def test_a_suspect_build_holds_up_no_other(context: Context, workers: LocalExecutor) -> None:
    """While other work has the turn of suspects, the build behind a suspect one is served."""
    job_id = submit(context)
    with context.sessions.begin() as session:
        suspect = builds.request_build(session, job_id, model_index=8).id
        builds.set_build(session, suspect, "running", attempts=attempts.SUSPECT_DEATHS)
        other = builds.request_build(session, job_id, model_index=7).id

    assert asyncio.run(serve(context, workers, turn_is_taken=True))
    assert not asyncio.run(serve(context, workers, turn_is_taken=True))
    with context.sessions() as session:
        states = [builds.get_build(session, each).state for each in (suspect, other)]
    assert states == ["running", "failed"]

    assert asyncio.run(serve(context, workers))
    with context.sessions() as session:
        assert builds.get_build(session, suspect).state == "failed"
