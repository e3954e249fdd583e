"""The status of a device is its last report."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from records.models import now
from records.service import devices
from records.service.service_models import DeviceStatus
from tests.records import make


def _report(name: str, **changes: Any) -> devices.DeviceReport:
    fields = {"worker": "host:1", "host": "host", "fingerprint": {"name": "GPU"}, "state": "idle"}
    return devices.DeviceReport(name=name, **{**fields, **changes})


def test_a_report_replaces_the_one_before(session: Session) -> None:
    """Devices without a new report keep their status."""
    job_id = make.job(session)
    devices.report(session, [_report("b"), _report("a", state="measuring", job_id=job_id)])
    devices.list_devices(session)
    devices.report(session, [_report("b", state="apart", reason="6 % slower", busy_share=0.5)])
    devices.report(session, [])

    first, second = devices.list_devices(session)

    assert (first.name, first.state, first.job_id) == ("a", "measuring", job_id)
    assert (second.state, second.reason, second.busy_share) == ("apart", "6 % slower", 0.5)
    assert second.fingerprint == {"name": "GPU"}


def test_devices_without_reports_are_removed(session: Session) -> None:
    """Devices with a recent report stay."""
    devices.report(session, [_report("old"), _report("new")])
    long_ago = now() - timedelta(minutes=5)
    of_old = update(DeviceStatus).where(DeviceStatus.name == "old")
    session.execute(of_old.values(heartbeat=long_ago))

    lately = devices.list_devices(session, seen_within=timedelta(minutes=1))
    devices.forget(session, timedelta(minutes=1))

    assert [device.name for device in lately] == ["new"]
    assert [device.name for device in devices.list_devices(session)] == ["new"]


def test_an_unknown_state_is_refused(session: Session) -> None:
    """The database allows only the known states."""
    with pytest.raises(IntegrityError, match="state_known"):
        devices.report(session, [_report("a", state="tired")])
