"""``tuner build`` on a service: built there, downloaded, verified, and put in its place here."""

from pathlib import Path

from tuner.cli.console import stderr_console
from tuner.cli.remote import submit
from tuner.client import TunerClient
from tuner.interrupts import interruptible
from tuner.jobs.requests import ModelRequest
from tuner.reports import BuildReport


def run(client: TunerClient, model: ModelRequest, out: Path, *, strict: bool) -> BuildReport:
    """Have a network built with the best records of the service, and fetch its library.

    Raises:
        RequestError: If the service does not take the request.
        WorkError: If it cannot be built, or does not arrive whole; ``out`` is as before.
    """
    console = stderr_console()
    with interruptible():
        job = submit.split(client, model).job.id
        known = {build.library_key for build in client.job(job).builds if build.state == "done"}
        asked = client.build(job, strict=strict)
        with console.status(f"job {job}: building at {client.url}"):
            build = client.wait_for_build(asked)
        with submit.transfer("downloading") as received:
            manifest = client.download_library(job, out, received=received)
    return BuildReport(out, manifest, cached=build.library_key in known)
