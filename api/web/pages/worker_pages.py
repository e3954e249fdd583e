"""The pages of workers with their devices, of networks, and of the audit log."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from api.dependencies import ReaderDep
from api.documents import pagination
from api.documents.schemas import Id, OptionalId
from api.web import access
from api.web.rendering import render
from api.web.sorting import query
from records.models import Target
from records.service.catalogue import targets_of
from records.service.owners.access import Viewer
from records.targets import device_name
from tuner.queries import catalogue
from tuner.queries.catalogue import NetworkUse
from tuner.queries.jobs import job_names
from tuner.schemas import NetworkInfo, NetworkTask, WorkerInfo

router = APIRouter(include_in_schema=False)

_LIMIT = 50
_MAX_DEVICES = 200
_N_JOBS = 8
# Devices without work come first, because their reason may need attention.
_ORDER = {"apart": 0, "lost": 1, "measuring": 2, "building": 3, "idle": 4}


@dataclass(frozen=True)
class WorkerRow:
    """A process; ``state`` is its role, offline or stopped."""

    worker: WorkerInfo
    state: str
    device: str
    details: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class NetworkRow:
    """A network, its inputs for people, its targets and its jobs."""

    network: NetworkInfo
    inputs: tuple[str, ...]
    use: NetworkUse


@dataclass(frozen=True)
class NetworkTarget:
    """Tasks of a network on a target, those with most time in an inference first.

    Attributes:
        spec: Canonical JSON of the target.
        total_secs: Sum of the best latencies in an inference, seconds; None without a record.
        n_open: Tasks without a record.
    """

    id: int
    spec: str
    device: str
    tasks: tuple[NetworkTask, ...]
    total_secs: float | None
    n_open: int


@router.get("/workers")
def read_workers(request: Request, subject: access.Reader, session: ReaderDep) -> HTMLResponse:
    """Show the processes that measure, and the devices that they measure on."""
    rows = [
        _worker_row(worker) for worker in catalogue.list_workers(session, _LIMIT, subject.viewer)
    ]
    devices = catalogue.list_devices(session, subject.viewer)
    devices.sort(key=lambda device: _ORDER.get(device.status, len(_ORDER)))
    shown = devices[:_MAX_DEVICES]
    jobs = {row.worker.job_id for row in rows} | {device.job_id for device in shown}
    return render(
        request,
        "workers.html",
        online=[row for row in rows if row.worker.alive],
        offline=[row for row in rows if not row.worker.alive],
        devices=shown,
        n_devices=len(devices),
        names=job_names(session, [job for job in jobs if job is not None]),
    )


@router.get("/networks")
def read_networks(
    request: Request, subject: access.Reader, session: ReaderDep, cursor: OptionalId = None
) -> HTMLResponse:
    """Show the networks, the newest first."""
    networks = catalogue.list_networks(session, cursor, _LIMIT + 1, subject.viewer)
    shown, more = pagination.cut(networks, _LIMIT)
    return render(
        request,
        "networks.html",
        rows=_network_rows(session, shown, subject.viewer),
        first_page="/networks" if cursor else None,
        next_page="/networks" + query([("cursor", shown[-1].id)]) if more else None,
    )


@router.get("/networks/{network_id}")
def read_network(
    request: Request, subject: access.Reader, session: ReaderDep, network_id: Id
) -> HTMLResponse:
    """Show a network with its jobs, and its tasks on each target with their best records.

    Raises:
        NoSuchRow: If the network does not exist, or the subject may not see it.
    """
    target_ids = targets_of(session, network_id, subject.viewer)
    (network,) = catalogue.list_networks(session, network_id + 1, 1, subject.viewer)
    (row,) = _network_rows(session, [network], subject.viewer)
    targets = [
        _network_target(session, network_id, session.get_one(Target, target_id))
        for target_id in target_ids
    ]
    return render(request, "network.html", row=row, targets=targets)


def _network_target(session: Session, network_id: int, target: Target) -> NetworkTarget:
    tasks = catalogue.network_tasks(session, network_id, target.id)
    tasks.sort(key=lambda task: -task.weight * (task.latency_secs or 0.0))
    return NetworkTarget(
        target.id,
        target.spec,
        device_name(target.spec, target.device),
        tuple(tasks),
        math.fsum(task.weight * (task.latency_secs or 0.0) for task in tasks) or None,
        sum(task.latency_secs is None for task in tasks),
    )


def _network_rows(
    session: Session, networks: Sequence[NetworkInfo], viewer: Viewer
) -> list[NetworkRow]:
    uses = catalogue.network_uses(
        session, [network.id for network in networks], n_jobs=_N_JOBS, viewer=viewer
    )
    return [
        NetworkRow(
            network, tuple(_input(*item) for item in network.inputs.items()), uses[network.id]
        )
        for network in networks
    ]


@router.get("/audit")
def read_audit(
    request: Request, _subject: access.Admin, session: ReaderDep, cursor: OptionalId = None
) -> HTMLResponse:
    """Show the audit log, the newest entry first."""
    entries = catalogue.list_audit(session, before=cursor, limit=_LIMIT + 1)
    shown, more = pagination.cut(entries, _LIMIT)
    return render(
        request,
        "audit.html",
        actions=shown,
        first_page="/audit" if cursor else None,
        next_page="/audit" + query([("cursor", shown[-1].id)]) if more else None,
    )


def _worker_row(worker: WorkerInfo) -> WorkerRow:
    state = worker.role
    if worker.stopped is not None:
        state = "stopped"
    elif not worker.alive:
        state = "offline"
    device = dict(worker.device)
    name = str(device.pop("name", "") or f"device of {worker.host}")
    details = tuple((str(key), str(value)) for key, value in sorted(device.items()))
    return WorkerRow(worker, state, name, details)


def _input(name: str, spec: object) -> str:
    if isinstance(spec, dict) and "shape" in spec:
        shape = ",".join(str(size) for size in spec["shape"])
        return f"{name} [{shape}] {spec.get('dtype', '')}"
    return name
