"""``tuner tune`` with ``--server``: submit jobs, watch them, report the outcome."""

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
from tuner.reporting.reports import TuneReport, latencies_of
from tuner.tables import Rows


class Detached(Interrupted):
    """The user stopped watching; the jobs continue on the server."""

    def __init__(self, stop: Interrupted, url: str, jobs: Sequence[int]) -> None:
        numbers = " and ".join(map(str, jobs))
        BaseException.__init__(
            self,
            f"stopped watching; the server continues job {numbers}. "
            f"Watch with `tuner --server {url} table {jobs[0]} --watch`, "
            f"stop with `tuner --server {url} jobs cancel {jobs[0]}`",
        )
        self.exit_code = stop.exit_code


def run(
    client: TunerClient, request: TuneRequest, *, separate: bool, webhook: str = ""
) -> list[TuneReport]:
    """Tune networks in one job or in a job each, and watch until all have ended.

    Raises:
        RequestError: If the server rejects the request.
        WorkError: If the only job failed.
        Detached: If the user stops watching.
    """
    started = time.monotonic()
    request.spec.require_trials()
    console = stderr_console()
    groups = [[model] for model in request.models] if separate else [list(request.models)]
    with interruptible():
        submitted: list[Submitted] = []
        try:
            for models in groups:
                sent = submit(client, models, request.spec, webhook)
                submitted.append(sent)
            results = _watch(client, submitted, started)
        except TunerError:
            for submission in submitted:
                line = f"note: job {submission.job.id} was submitted and continues"
                console.print(line, style="yellow")
            raise
        except Interrupted as stop:
            if submitted:
                job_ids = [submission.job.id for submission in submitted]
                raise Detached(stop, client.url, job_ids) from None
            raise
    if not separate and results[0].error is not None:
        raise WorkError(f"job {results[0].job} failed: {results[0].error}")
    return results


def _watch(client: TunerClient, submitted: Sequence[Submitted], started: float) -> list[TuneReport]:
    console = stderr_console()
    jobs = [submission.job for submission in submitted]
    for job in jobs:
        line = f"job {job.id} at {client.url}/jobs/{job.id}"
        console.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)
    if any(job.state == "queued" for job in jobs) and not any(
        worker.alive is not False and worker.stopped is None for worker in client.workers()
    ):
        console.print("note: no worker of the server is active; jobs wait for one", style="yellow")
    with make_progress(console) as progress:
        watch = Watch(client, lambda view: progress.show(progress_of_job(view)))
        watch.follow(jobs)
    return [_report(watch, submission, started) for submission in submitted]


def _report(watch: Watch, submitted: Submitted, started: float) -> TuneReport:
    view = watch.final(submitted.job.id)
    job = view.job
    if job.state in ("paused", "cancelled"):
        stderr_console().print(f"note: job {job.id} was {job.state}", style="yellow")
    first = watch.first_trials.get(job.id)
    return TuneReport(
        job=job.id,
        network=job.network or job.name,
        target=job.target or "",
        tasks=Rows(view.tasks),
        measured_now=job.trials - submitted.job.trials,
        secs=time.monotonic() - started,
        first_trial_secs=None if first is None else first - started,
        error=(job.message or "no reason given") if job.state == "failed" else None,
        **latencies_of(view),
    )
