"""``tuner tasks`` with ``--server``: a job that measures nothing."""

from tuner.cli.remote import submit
from tuner.client import TunerClient
from tuner.interrupts import interruptible
from tuner.jobs.requests import ModelRequest
from tuner.reporting.reports import ExtractedTask, ExtractReport
from tuner.tables import Rows


def run(client: TunerClient, model: ModelRequest) -> ExtractReport:
    """Split a network into tasks on a server.

    Raises:
        RequestError: If the server rejects the request.
        WorkError: If the network cannot be split.
    """
    with interruptible():
        view = submit.split(client, model)
        job, split = view.job, view.split
        return ExtractReport(
            network=job.network or job.name,
            sha256="" if split is None else split.sha256,
            target=job.target or "",
            kernel_calls=None if split is None else split.kernel_calls,
            notes=() if split is None else split.notes,
            tasks=Rows(
                ExtractedTask(task.workload, task.name, task.weight, task.flop)
                for task in view.tasks
            ),
        )
