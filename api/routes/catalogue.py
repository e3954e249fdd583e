"""What the service knows: networks, targets, workers, devices, and who did what."""

from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy.orm import Session

from api import pagination, schemas
from api.dependencies import Administering, ReaderDep, Reading
from api.errors import Problem
from api.openapi import problems
from api.routes import PREFIX
from api.schemas import (
    ActionPage,
    Devices,
    Id,
    NetworkPage,
    NetworkTask,
    NetworkTasks,
    TargetPage,
    Workers,
    action_of,
    device_of,
    network_of,
    target_of,
    worker_of,
)
from records import audit, bests, catalogue, devices, tasks, workers

router = APIRouter(prefix=PREFIX, tags=["catalogue"])


@router.get("/networks", response_model=NetworkPage)
def list_networks(
    session: ReaderDep,
    _subject: Reading,
    cursor: schemas.Cursor = None,
    limit: schemas.Limit = 50,
) -> NetworkPage:
    """List networks, the newest first."""
    rows = catalogue.list_networks(session, pagination.number_of(cursor), limit + 1)
    shown, more = pagination.cut(rows, limit)
    known = catalogue.targets_by_network(session, [row.id for row in shown])
    items = [network_of(row, known.get(row.id, [])) for row in shown]
    return NetworkPage(items, pagination.before(shown, more))


@router.get("/networks/{network_id}/tasks", response_model=NetworkTasks, responses=problems(404))
def list_network_tasks(
    network_id: Id,
    session: ReaderDep,
    _subject: Reading,
    target: Annotated[
        int | None,
        Query(ge=1, le=schemas.MOST, description="May be left out where there is but one."),
    ] = None,
) -> NetworkTasks:
    """List the weighted tasks of a network on a target, each with its best latency."""
    target_id = _target_of(session, network_id, target)
    weighted = tasks.weighted_tasks(session, network_id, target_id)
    best = bests.best_latencies(session, [task.task_id for task in weighted])
    items = [
        NetworkTask(
            task_id=task.task_id,
            workload=task.workload_hash,
            name=task.name,
            engine=task.engine,
            weight=task.weight,
            flop=task.flop,
            latency_secs=best.get(task.task_id),
        )
        for task in weighted
    ]
    return NetworkTasks(network_id, target_id, items)


@router.get("/targets", response_model=TargetPage)
def list_targets(
    session: ReaderDep,
    _subject: Reading,
    cursor: schemas.Cursor = None,
    limit: schemas.Limit = 50,
) -> TargetPage:
    """List targets with their devices, the newest first."""
    rows = catalogue.list_targets(session, pagination.number_of(cursor), limit + 1)
    shown, more = pagination.cut(rows, limit)
    return TargetPage([target_of(row) for row in shown], pagination.before(shown, more))


@router.get("/workers", response_model=Workers)
def list_workers(session: ReaderDep, _subject: Reading) -> Workers:
    """List the processes that measure or stand by, those heard of last first."""
    return Workers([worker_of(row) for row in workers.list_workers(session)[:1000]])


@router.get("/devices", response_model=Devices)
def list_devices(session: ReaderDep, _subject: Reading) -> Devices:
    """List the devices by name: what each does, or why it does nothing."""
    return Devices([device_of(row) for row in devices.list_devices(session)[:10_000]])


@router.get("/audit", response_model=ActionPage)
def list_actions(
    session: ReaderDep,
    _subject: Administering,
    job: schemas.OptionalId = None,
    cursor: schemas.Cursor = None,
    limit: schemas.Limit = 100,
) -> ActionPage:
    """List who asked for what, the newest first."""
    rows = audit.actions(session, job_id=job, before=pagination.number_of(cursor), limit=limit + 1)
    shown, more = pagination.cut(rows, limit)
    return ActionPage([action_of(row) for row in shown], pagination.before(shown, more))


def _target_of(session: Session, network_id: int, target: int | None) -> int:
    known = catalogue.targets_of(session, network_id)
    if target is None and len(known) == 1:
        return known[0]
    if target is None and known:
        raise Problem("invalid", f"say which target: it was split for {known}")
    if target is None or target not in known:
        raise Problem("not-found", f"network {network_id} was not split for target {target}")
    return target
