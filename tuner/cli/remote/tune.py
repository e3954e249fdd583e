"""``tuner tune`` on a service: submit, watch, report."""

import time
from collections.abc import Sequence

from tuner.cli.console import stderr_console
from tuner.cli.remote.submit import submit
from tuner.cli.remote.watch import Watch
from tuner.cli.rendering.progress import make_progress
from tuner.client import Submitted, TunerClient
from tuner.errors import TunerError, WorkError
from tuner.interrupts import Interrupted, interruptible
from tuner.jobs.requests import TuneRequest
from tuner.queries.progress import progress_of_job
from tuner.reports import TuneReport


class Detached(Interrupted):
    """The user stopped to watch; the jobs go on without them."""

    def __init__(self, stop: Interrupted, url: str, jobs: Sequence[int]) -> None:
        numbers = " and ".join(map(str, jobs))
        BaseException.__init__(
            self,
            f"stopped watching; the service goes on with job {numbers}. "
            f"tuner --server {url} table {jobs[0]} --watch shows it, "
            f"tuner --server {url} jobs cancel {jobs[0]} stops it",
        )
        self.exit_code = stop.exit_code


def run(client: TunerClient, request: TuneRequest, *, separate: bool) -> list[TuneReport]:
    """Tune networks, in one job or in one each, and watch until that has ended.

    Raises:
        RequestError: If the service does not take the request.
        WorkError: If the only job failed.
        Detached: If the user stops to watch.
    """
    started = time.monotonic()
    request.spec.check_measures()
    console = stderr_console()
    groups = [[model] for model in request.models] if separate else [list(request.models)]
    with interruptible():
        submitted: list[Submitted] = []
        try:
            for models in groups:
                submitted.append(submit(client, models, request.spec))  # noqa: PERF401  keep what was sent
            results = _watch(client, submitted, started)
        except TunerError:
            for each in submitted:
                console.print(f"note: job {each.job.id} was submitted, and goes on", style="yellow")
            raise
        except Interrupted as stop:
            if submitted:
                raise Detached(stop, client.url, [each.job.id for each in submitted]) from None
            raise
    if not separate and results[0].error is not None:
        raise WorkError(f"job {results[0].job} failed: {results[0].error}")
    return results


def _watch(client: TunerClient, submitted: Sequence[Submitted], started: float) -> list[TuneReport]:
    console = stderr_console()
    jobs = [each.job for each in submitted]
    for job in jobs:
        where = f"job {job.id} at {client.url}/jobs/{job.id}"
        console.print(where, style="dim", highlight=False, markup=False, soft_wrap=True)
    if any(job.state == "queued" for job in jobs) and not _has_worker(client):
        console.print("note: no worker of the service is active; jobs wait for one", style="yellow")
    with make_progress(console) as progress:
        watch = Watch(client, lambda view: progress.show(progress_of_job(view)))
        watch.follow(jobs)
    return [_result(watch, each, started) for each in submitted]


def _has_worker(client: TunerClient) -> bool:
    return any(worker.alive is not False and worker.stopped is None for worker in client.workers())


def _result(watch: Watch, submitted: Submitted, started: float) -> TuneReport:
    view = watch.final(submitted.job.id)
    job = view.job
    if job.state in ("paused", "cancelled"):
        stderr_console().print(f"note: job {job.id} was {job.state}", style="yellow")
    first = watch.first_trials.get(job.id)
    return TuneReport(
        job=job.id,
        network=job.network or job.name,
        target=job.target or "",
        tasks=view.tasks,
        total_secs=job.total_latency_secs,
        measured_now=job.trials - submitted.job.trials,
        secs=time.monotonic() - started,
        first_trial_secs=None if first is None else first - started,
        error=(job.message or "no reason given") if job.state == "failed" else None,
    )
