"""``tuner tasks`` on a service: a submission that measures nothing."""

from tuner.client import TunerClient
from tuner.commands.outcomes import Split, split_there
from tuner.commands.remote import asking
from tuner.interrupts import interruptible
from tuner.preparation import ModelRequest


def run(client: TunerClient, model: ModelRequest) -> Split:
    """Have a network split into tasks.

    Raises:
        RequestError: If the service does not take the request.
        WorkError: If the network cannot be split.
    """
    with interruptible():
        return split_there(asking.split(client, model))
