"""``tuner tasks`` on a service: a submission that measures nothing."""

from tuner.cli.remote import submit
from tuner.cli.rendering.reports import ExtractReport, extract_report_of_job
from tuner.client import TunerClient
from tuner.interrupts import interruptible
from tuner.jobs.preparation import ModelRequest


def run(client: TunerClient, model: ModelRequest) -> ExtractReport:
    """Have a network split into tasks.

    Raises:
        RequestError: If the service does not take the request.
        WorkError: If the network cannot be split.
    """
    with interruptible():
        return extract_report_of_job(submit.split(client, model))
