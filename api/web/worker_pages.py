"""The pages of what there is: workers with their devices, networks, and the audit log."""

from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.dependencies import ReaderDep
from api.schemas import OptionalId
from api.web import access
from api.web.rendering import render
from api.web.sorting import query
from records import audit, devices, workers
from records.catalogue import list_networks
from records.models import Job, Network, NetworkTask, Target, Task
from records.service_models import DeviceStatus, Worker
from tuner.queries import jobs as job_queries

router = APIRouter(include_in_schema=False)

_LIMIT = 50
_MOST_DEVICES = 200
# Who has no work comes first: there is a reason that somebody may want to know.
_ORDER = {"apart": 0, "lost": 1, "measuring": 2, "idle": 3}


@dataclass(frozen=True)
class WorkerRow:
    """A process, and whether it lives: ``state`` is its role, or silent, or stopped."""

    worker: Worker
    state: str
    device: str
    details: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class DeviceRow:
    """A device, what it is, and whether it is heard of: ``state`` is silent if it is not."""

    device: DeviceStatus
    state: str
    kind: str


@dataclass(frozen=True)
class NetworkRow:
    """A network, its tasks on each target, and its jobs."""

    network: Network
    inputs: tuple[str, ...]
    targets: tuple[tuple[str, int], ...]
    jobs: tuple[Job, ...]


@router.get("/workers")
def read_workers(request: Request, session: ReaderDep, _subject: access.Reader) -> HTMLResponse:
    """Show the processes that measure, and the devices that they measure on."""
    rows = [_worker_row(worker) for worker in workers.list_workers(session)[:_LIMIT]]
    known = [_device_row(device) for device in devices.list_devices(session)]
    known.sort(key=lambda row: _ORDER.get(row.state, len(_ORDER)))
    shown = known[:_MOST_DEVICES]
    wanted = {row.worker.job_id for row in rows} | {row.device.job_id for row in shown}
    jobs = list(session.scalars(select(Job).where(Job.id.in_(wanted - {None}))))
    names = {job.id: job.name for job in job_queries.summaries(session, jobs)}
    alive = [row for row in rows if row.state not in ("silent", "stopped")]
    gone = [row for row in rows if row not in alive]
    return render(
        request,
        "workers.html",
        alive=alive,
        gone=gone,
        devices=shown,
        n_devices=len(known),
        names=names,
    )


@router.get("/networks")
def read_networks(
    request: Request, session: ReaderDep, _subject: access.Reader, cursor: OptionalId = None
) -> HTMLResponse:
    """Show the networks, the newest first."""
    found = list_networks(session, cursor, _LIMIT + 1)
    shown = found[:_LIMIT]
    return render(
        request,
        "networks.html",
        rows=_network_rows(session, shown),
        first_page="/networks" if cursor else None,
        next_page="/networks" + query([("cursor", shown[-1].id)]) if len(found) > _LIMIT else None,
    )


@router.get("/audit")
def read_audit(
    request: Request, session: ReaderDep, _subject: access.Admin, cursor: OptionalId = None
) -> HTMLResponse:
    """Show who asked for what, the newest first."""
    found = audit.actions(session, before=cursor, limit=_LIMIT + 1)
    shown = found[:_LIMIT]
    return render(
        request,
        "audit.html",
        actions=shown,
        first_page="/audit" if cursor else None,
        next_page="/audit" + query([("cursor", shown[-1].id)]) if len(found) > _LIMIT else None,
    )


def _worker_row(worker: Worker) -> WorkerRow:
    state = worker.role
    if worker.stopped is not None:
        state = "stopped"
    elif not workers.is_alive(worker):
        state = "silent"
    device = dict(worker.device)
    name = str(device.pop("name", "") or "unnamed device")
    details = tuple((str(key), str(value)) for key, value in sorted(device.items()))
    return WorkerRow(worker, state, name, details)


def _device_row(device: DeviceStatus) -> DeviceRow:
    state = device.state if devices.is_alive(device) else "silent"
    return DeviceRow(device, state, str(device.fingerprint.get("name") or "unnamed device"))


def _network_rows(session: Session, found: list[Network]) -> list[NetworkRow]:
    ids = [network.id for network in found]
    targets: dict[int, list[tuple[str, int]]] = {}
    counted = (
        select(NetworkTask.network_id, Target.device, func.count())
        .join(Task, Task.id == NetworkTask.task_id)
        .join(Target, Target.id == Task.target_id)
        .where(NetworkTask.network_id.in_(ids))
        .group_by(NetworkTask.network_id, Target.id)
        .order_by(Target.id)
    )
    for network_id, device, n_tasks in session.execute(counted):
        named = str(device.get("name") or "unnamed device")
        targets.setdefault(network_id, []).append((named, n_tasks))
    jobs: dict[int | None, list[Job]] = {}
    listed = select(Job).where(Job.network_id.in_(ids), ~Job.hidden).order_by(Job.id.desc())
    for job in session.scalars(listed):
        jobs.setdefault(job.network_id, []).append(job)
    return [
        NetworkRow(
            network,
            tuple(_input(name, spec) for name, spec in network.inputs.items()),
            tuple(targets.get(network.id, ())),
            tuple(jobs.get(network.id, ())[:8]),
        )
        for network in found
    ]


def _input(name: str, spec: object) -> str:
    if isinstance(spec, dict) and "shape" in spec:
        shape = ",".join(str(size) for size in spec["shape"])
        return f"{name} [{shape}] {spec.get('dtype', '')}"
    return name
