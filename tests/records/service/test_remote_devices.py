"""Calls for remote devices are leased to one process at a time, and answered once."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from records.errors import NameInUse, NoSuchRow
from records.service import remote_devices
from records.service.service_models import RemoteCall, RemoteDevice

NAME, OLD, NEW = "lab/cpu", "old-key", "new-key"


def add_calls(session: Session, *ids: str, device: str = NAME) -> None:
    """Store calls that wait for a device."""
    for call_id in ids:
        session.add(
            RemoteCall(
                id=call_id, device=device, function="run", arguments=b"a", files=[], timeout_secs=1
            )
        )
    session.flush()


def leased(session: Session, key: str, limit: int = 10) -> list[str]:
    """Lease calls, and return their names."""
    return [call.id for call in remote_devices.lease(session, NAME, key, limit)]


def answer(session: Session, key: str, **answers: bytes) -> None:
    """Answer calls as a process does."""
    remote_devices.store_answers(session, NAME, key, answers)


def answers(session: Session) -> dict[str, bytes | None]:
    """Return the leased calls with their answers."""
    session.flush()
    session.expire_all()
    return {call.id: call.answer for call in remote_devices.leased(session)}


def test_calls_are_leased_in_order_and_come_again_until_they_are_answered(session: Session) -> None:
    """A response that was lost costs nothing, and a device gets its own calls alone."""
    remote_devices.register(session, NAME, "ci", OLD)
    add_calls(session, "1", "2", "3")
    add_calls(session, "4", device="other/cpu")

    assert remote_devices.waiting(session) == {NAME, "other/cpu"}
    assert leased(session, OLD, 2) == ["1", "2"]
    answer(session, OLD, **{"1": b"one"})
    assert leased(session, OLD) == ["2", "3"]
    assert answers(session) == {"1": b"one", "2": None, "3": None}
    assert remote_devices.waiting(session) == {"other/cpu"}


def test_an_answer_is_stored_once_and_only_of_the_process_that_leased_the_call(
    session: Session,
) -> None:
    """A second report changes nothing, nor does one about a call of another device."""
    remote_devices.register(session, NAME, "ci", OLD)
    add_calls(session, "1", "2")
    add_calls(session, "3", device="other/cpu")
    assert leased(session, OLD, 1) == ["1"]

    answer(session, OLD, **{"1": b"first", "2": b"not leased", "3": b"foreign"})
    answer(session, OLD, **{"1": b"second"})

    assert answers(session) == {"1": b"first"}


def test_a_process_that_starts_again_replaces_its_predecessor(session: Session) -> None:
    """The older one is refused, and its answers are not stored."""
    remote_devices.register(session, NAME, "ci", OLD)
    add_calls(session, "1")
    assert leased(session, OLD) == ["1"]
    remote_devices.register(session, NAME, "ci", NEW)

    for call in (lambda: answer(session, OLD, **{"1": b"late"}), lambda: leased(session, OLD)):
        with pytest.raises(NameInUse):
            call()

    assert answers(session) == {"1": None}
    assert leased(session, NEW) == []


def test_a_name_belongs_to_its_token_while_the_device_is_alive(session: Session) -> None:
    """Another token gets it once the device is offline; an unknown device gets nothing."""
    remote_devices.register(session, NAME, "ci", OLD)
    with pytest.raises(NameInUse):
        remote_devices.register(session, NAME, "eve", NEW)
    session.get_one(RemoteDevice, NAME).heartbeat -= remote_devices.OFFLINE_AFTER
    session.flush()
    remote_devices.register(session, NAME, "eve", NEW)
    remote_devices.leave(session, NAME, OLD)
    assert leased(session, NEW) == []

    remote_devices.leave(session, NAME, NEW)
    with pytest.raises(NoSuchRow):
        leased(session, NEW)
    remote_devices.register(session, NAME, "eve", NEW)
    remote_devices.forget(session, timedelta(seconds=-1))
    assert remote_devices.devices(session) == []
