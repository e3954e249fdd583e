"""Status rows of devices."""

import asyncio

from records.service import devices
from tests.engines.toy_network import Workshop
from tuner.tuning.devices.device_manager import DeviceHeartbeat


def test_a_reason_that_no_database_can_store_is_reported_without_it(workshop: Workshop) -> None:
    """The message of a lost device may contain anything, and affects no trial of its batch."""

    async def beat() -> None:
        workshop.context.refresh()
        (device,) = workshop.context.devices.values()
        device.loss_reason = "gone\x00\ud800"
        DeviceHeartbeat(workshop.context).beat({})
        workshop.context.record_writer.flush()

    asyncio.run(beat())

    with workshop.sessions() as session:
        (device,) = devices.list_devices(session)
    assert (device.state, device.reason) == ("lost", "gone\ufffd?")
