"""What others are told of devices."""

import asyncio

from records import devices
from tests.engines.toy_network import Workshop
from tuner.tuning.device_heartbeat import DeviceHeartbeat


def test_a_reason_that_no_database_stores_is_told_all_the_same(workshop: Workshop) -> None:
    """What a device said when it was lost may hold anything, and harms no trial beside it."""

    async def tell() -> None:
        workshop.context.refresh()
        (device,) = workshop.context.devices.values()
        device.loss_reason = "gone\x00\ud800"
        DeviceHeartbeat(workshop.context).beat({})
        workshop.context.record_writer.flush()

    asyncio.run(tell())

    with workshop.sessions() as session:
        (told,) = devices.list_devices(session)
    assert (told.state, told.reason) == ("lost", "gone\ufffd?")
