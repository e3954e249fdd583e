"""``tuner build`` with ``--server``: the server builds, this machine downloads and verifies."""

from pathlib import Path

from tuner.cli.console import stderr_console
from tuner.cli.remote import submit
from tuner.client import TunerClient
from tuner.interrupts import interruptible
from tuner.jobs.requests import ModelRequest
from tuner.reporting.reports import BuildReport


def run(client: TunerClient, model: ModelRequest, out: Path, *, strict: bool) -> BuildReport:
    """Build a network on a server with the records there, and download the library.

    Raises:
        RequestError: If the server rejects the request.
        WorkError: If the build or the download fails; ``out`` is unchanged.
    """
    console = stderr_console()
    with interruptible():
        job = submit.split(client, model).job.id
        builds = client.job(job).builds
        known_keys = {build.library_key for build in builds if build.state == "done"}
        requested = client.build(job, strict=strict)
        with console.status(f"job {job}: building at {client.url}"):
            build = client.wait_for_build(requested)
        with submit.transfer("downloading") as received:
            manifest = client.download_library(job, out, received=received)
    return BuildReport(out, manifest, cached=build.library_key in known_keys)
