"""Requests of the command line, submitted to a server."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from tuner.cli.console import stderr_console
from tuner.client import Submitted, TuneFields, TunerClient
from tuner.client.client import ENDED
from tuner.client.transport import call_until_available
from tuner.client.uploads import Sent
from tuner.errors import WorkError
from tuner.interrupts import interruptible
from tuner.jobs.requests import ModelRequest
from tuner.jobs.spec import TuneSpec
from tuner.reporting.reports import BuildReport, ExtractedTask, ExtractReport
from tuner.schemas import JobView
from tuner.tables import Rows

_POLL_INTERVAL_SECS = 0.3
_OUTAGE_TIMEOUT_SECS = 300.0


def submit(
    client: TunerClient, models: Sequence[ModelRequest], spec: TuneSpec, webhook: str = ""
) -> Submitted:
    """Upload models with the options of their job; a progress bar shows a long upload."""
    references = list(dict.fromkeys(model.reference for model in models))
    fields: TuneFields = {**fields_of(models, spec), "webhook": webhook}
    with transfer("uploading") as sent:
        return client.tune(*references, sent=sent, **fields)


def split(client: TunerClient, model: ModelRequest) -> JobView:
    """Split a network into tasks unless it is split already; return the table of its job.

    Raises:
        WorkError: If the network cannot be split.
    """
    job = submit(client, [model], TuneSpec(trials=0)).job.id
    while True:
        view = call_until_available(partial(client.table, job), _OUTAGE_TIMEOUT_SECS)
        if view.split is not None and view.tasks:
            return view
        if view.job.state in ENDED:
            raise WorkError(f"job {job} is {view.job.state}: {view.job.message or 'no tasks'}")
        time.sleep(_POLL_INTERVAL_SECS)


def fields_of(models: Sequence[ModelRequest], spec: TuneSpec) -> TuneFields:
    """Return the fields of a job that differ from their defaults."""
    model = models[0]
    fields: TuneFields = {
        "target": model.target,
        # Every model has the same sets of shapes.
        "inputs": [each.inputs for each in models if each.reference == model.reference],
        "buckets": {name: dict(sizes) or None for name, sizes in model.buckets.items()},
        "masks": model.masks,
        "random_weights": model.random_weights,
    }
    return cast("TuneFields", {**fields, **spec.model_dump(exclude_defaults=True)})


@contextmanager
def transfer(what: str) -> Iterator[Sent]:
    """Show a progress bar of a transfer, in a terminal only."""
    console = stderr_console()
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task(what, total=None, visible=False)

        def sent(n_bytes: int, n_all: int) -> None:
            progress.update(bar, completed=n_bytes, total=n_all or None, visible=n_all > 0)

        yield sent


def build(client: TunerClient, model: ModelRequest, out: Path, *, strict: bool) -> BuildReport:
    """Build a network on a server with the records there, and download the library.

    Raises:
        RequestError: If the server rejects the request.
        WorkError: If the build or the download fails; ``out`` is unchanged.
    """
    console = stderr_console()
    with interruptible():
        job = split(client, model).job.id
        builds = client.job(job).builds
        known_keys = {build.library_key for build in builds if build.state == "done"}
        requested = client.build(job, strict=strict)
        with console.status(f"job {job}: building at {client.url}"):
            build = client.wait_for_build(requested)
        with transfer("downloading") as received:
            manifest = client.download_library(job, out, received=received)
    return BuildReport(out, manifest, cached=build.library_key in known_keys)


def extract(client: TunerClient, model: ModelRequest) -> ExtractReport:
    """Split a network into tasks on a server.

    Raises:
        RequestError: If the server rejects the request.
        WorkError: If the network cannot be split.
    """
    with interruptible():
        view = split(client, model)
        job, made = view.job, view.split
        return ExtractReport(
            network=job.network or job.name,
            sha256="" if made is None else made.sha256,
            target=job.target or "",
            kernel_calls=None if made is None else made.kernel_calls,
            notes=() if made is None else made.notes,
            tasks=Rows(
                ExtractedTask(task.workload, task.name, task.weight, task.flop)
                for task in view.tasks
            ),
        )
