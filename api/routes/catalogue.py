"""Networks, targets, workers, devices and the audit log."""

from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy.orm import Session

from api.dependencies import Administering, ReaderDep, Reading
from api.documents import pagination, schemas
from api.documents.openapi import problems
from api.documents.schemas import Id, NetworkTasks
from api.errors import Problem
from api.routes import PREFIX
from records.service.catalogue import targets_of
from records.service.owners.access import Viewer
from tuner.queries import catalogue
from tuner.schemas import AuditEntry, DeviceInfo, NetworkInfo, Page, TargetInfo, WorkerInfo

_MAX_WORKERS = 1000
_MAX_DEVICES = 10_000
router = APIRouter(prefix=PREFIX, tags=["catalogue"])


@router.get("/networks", response_model=Page[NetworkInfo])
def list_networks(
    subject: Reading,
    session: ReaderDep,
    cursor: schemas.Cursor = None,
    limit: schemas.Limit = 50,
) -> Page[NetworkInfo]:
    """List the networks of your jobs and those of your project, the newest first."""
    networks = catalogue.list_networks(
        session, pagination.number_of(cursor), limit + 1, subject.viewer
    )
    return Page(*pagination.newest_first(networks, limit))


@router.get("/networks/{network_id}/tasks", response_model=NetworkTasks, responses=problems(404))
def list_network_tasks(
    network_id: Id,
    subject: Reading,
    session: ReaderDep,
    target: Annotated[
        int | None,
        Query(ge=1, le=schemas.MAX_ID, description="Optional for a network with one target."),
    ] = None,
) -> NetworkTasks:
    """List the weighted tasks of a network on a target, each with its best latency."""
    target_id = _target_of(session, network_id, target, subject.viewer)
    tasks = catalogue.network_tasks(session, network_id, target_id)
    return NetworkTasks(network_id, target_id, tasks)


@router.get("/targets", response_model=Page[TargetInfo])
def list_targets(
    _subject: Reading,
    session: ReaderDep,
    cursor: schemas.Cursor = None,
    limit: schemas.Limit = 50,
) -> Page[TargetInfo]:
    """List targets with their devices, the newest first."""
    targets = catalogue.list_targets(session, pagination.number_of(cursor), limit + 1)
    return Page(*pagination.newest_first(targets, limit))


@router.get("/workers", response_model=Page[WorkerInfo])
def list_workers(subject: Reading, session: ReaderDep) -> Page[WorkerInfo]:
    """List the processes that measure or are on standby, the last seen first."""
    return Page(catalogue.list_workers(session, _MAX_WORKERS, subject.viewer))


@router.get("/devices", response_model=Page[DeviceInfo])
def list_devices(subject: Reading, session: ReaderDep) -> Page[DeviceInfo]:
    """List the devices by name, with their activity or the reason that they have none."""
    return Page(catalogue.list_devices(session, subject.viewer)[:_MAX_DEVICES])


@router.get("/audit", response_model=Page[AuditEntry])
def list_actions(
    _subject: Administering,
    session: ReaderDep,
    job: schemas.OptionalId = None,
    cursor: schemas.Cursor = None,
    limit: schemas.Limit = 100,
) -> Page[AuditEntry]:
    """List the audit log, the newest entry first."""
    entries = catalogue.list_audit(
        session, job_id=job, before=pagination.number_of(cursor), limit=limit + 1
    )
    return Page(*pagination.newest_first(entries, limit))


def _target_of(session: Session, network_id: int, target: int | None, viewer: Viewer) -> int:
    targets = targets_of(session, network_id, viewer)
    if target is None and len(targets) == 1:
        return targets[0]
    if target is None and targets:
        raise Problem("invalid", f"network {network_id} has the targets {targets}: choose one")
    if target is None or target not in targets:
        raise Problem("not-found", f"network {network_id} was not split for target {target}")
    return target
