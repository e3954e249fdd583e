"""Device status: present activity, utilisation, and the reason why a device does not measure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session

from records.models import now
from records.service.service_models import DeviceState, DeviceStatus
from records.storage.upsert import built_once, table

# A device without a report for this long counts as offline.
OFFLINE_AFTER = timedelta(seconds=60)


@dataclass(frozen=True, kw_only=True)
class DeviceReport:
    """A periodic report on one device.

    Attributes:
        name: Name of the runner, unique within a fleet.
        worker: Process that reports, see :mod:`records.service.workers`.
        fingerprint: Device fingerprint; devices with equal fingerprints share jobs.
        state: ``measuring``, ``idle``, ``lost``, or ``apart`` if the device is excluded because
            it disagrees with the others or slows down.
        reason: Reason for ``apart`` or ``lost``.
        busy_share: Share of recent time spent measuring, from 0 to 1.
        busy_secs: Total time spent measuring, seconds.
        job_id: Job that the device measures for.
    """

    name: str
    worker: str
    host: str
    fingerprint: Mapping[str, Any]
    state: DeviceState
    reason: str = ""
    busy_share: float = 0.0
    busy_secs: float = 0.0
    job_id: int | None = None


def report(session: Session, reports: Sequence[DeviceReport]) -> None:
    """Store reports by device name, in one statement."""
    if not reports:
        return
    at = now()
    rows = [
        vars(device) | {"fingerprint": dict(device.fingerprint), "heartbeat": at}
        for device in sorted(reports, key=lambda device: device.name)
    ]
    session.execute(_upsert_status(session), rows)


def forget(session: Session, age: timedelta) -> None:
    """Remove the devices whose last report is older than ``age``."""
    session.execute(delete(DeviceStatus).where(DeviceStatus.heartbeat < now() - age))


def is_alive(device: DeviceStatus) -> bool:
    """Return whether the last report on a device is recent."""
    return abs(now() - device.heartbeat) < OFFLINE_AFTER


def list_devices(session: Session, *, seen_within: timedelta | None = None) -> list[DeviceStatus]:
    """Return the devices by name, optionally only those reported within a time."""
    stmt = select(DeviceStatus).order_by(DeviceStatus.name)
    if seen_within is not None:
        stmt = stmt.where(DeviceStatus.heartbeat > now() - seen_within)
    return list(session.scalars(stmt.execution_options(populate_existing=True)))


def _replace(insert: postgresql.Insert) -> postgresql.Insert:
    values = {column.name: insert.excluded[column.name] for column in table(DeviceStatus).c}
    return insert.on_conflict_do_update(index_elements=[DeviceStatus.name], set_=values)


_upsert_status = built_once(DeviceStatus, _replace)
