"""Devices: what each of them does now, how busy it is, and why it measures nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session

from records.models import now
from records.service_models import DeviceState, DeviceStatus
from records.upsert import built_once, table

# A device that nothing was said of for so long has nobody who measures on it.
SILENT = timedelta(seconds=60)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What is said of a device.

    Attributes:
        name: The runner's name, one for each device of a fleet.
        worker: The process that says so, see :mod:`records.workers`.
        host: Where the device is.
        fingerprint: What it says of itself; devices of one fingerprint share jobs.
        state: ``measuring``, ``idle``, ``apart`` from the others as it disagrees with them or
            slows down, or ``lost``.
        reason: Why it is apart or lost.
        busy_share: Part of its time, lately, in which it measured, from 0 to 1.
        busy_secs: Seconds in which it measured, all in all.
        job_id: The job it measures for.
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


def report(session: Session, said: Sequence[Report]) -> None:
    """Store what is said of devices, under their names, all in one statement."""
    if not said:
        return
    at = now()
    ordered = sorted(said, key=lambda device: device.name)
    rows = [
        vars(device) | {"fingerprint": dict(device.fingerprint), "heartbeat": at}
        for device in ordered
    ]
    session.execute(_said(session), rows)


def forget(session: Session, silent: timedelta) -> None:
    """Remove the devices that nothing was said of for so long."""
    session.execute(delete(DeviceStatus).where(DeviceStatus.heartbeat < now() - silent))


def is_alive(device: DeviceStatus) -> bool:
    """Return whether something was said of a device a moment ago."""
    return abs(now() - device.heartbeat) < SILENT


def list_devices(session: Session, *, lately: timedelta | None = None) -> list[DeviceStatus]:
    """Return the devices by name; only those that something was said of lately, if wanted."""
    wanted = select(DeviceStatus).order_by(DeviceStatus.name)
    if lately is not None:
        wanted = wanted.where(DeviceStatus.heartbeat > now() - lately)
    return list(session.scalars(wanted.execution_options(populate_existing=True)))


def _replace(row: postgresql.Insert) -> postgresql.Insert:
    replaced = {column.name: row.excluded[column.name] for column in table(DeviceStatus).c}
    return row.on_conflict_do_update(index_elements=[DeviceStatus.name], set_=replaced)


_said = built_once(DeviceStatus, _replace)
