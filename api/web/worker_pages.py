"""The pages of workers with their devices, of networks, and of the audit log."""

from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from api.dependencies import ReaderDep
from api.documents import pagination
from api.documents.schemas import OptionalId
from api.web import access
from api.web.rendering import render
from api.web.sorting import query
from tuner.queries import catalogue
from tuner.queries.catalogue import NetworkUse
from tuner.queries.jobs import job_names
from tuner.schemas import DeviceInfo, NetworkInfo, WorkerInfo

router = APIRouter(include_in_schema=False)

_LIMIT = 50
_MAX_DEVICES = 200
_N_JOBS = 8
# Devices without work come first, because their reason may need attention.
_ORDER = {"apart": 0, "lost": 1, "measuring": 2, "idle": 3}


@dataclass(frozen=True)
class WorkerRow:
    """A process; ``state`` is its role, offline or stopped."""

    worker: WorkerInfo
    state: str
    device: str
    details: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class DeviceRow:
    """A device; ``state`` is offline if its last report is old."""

    device: DeviceInfo
    state: str
    kind: str


@dataclass(frozen=True)
class NetworkRow:
    """A network, its inputs for people, its targets and its jobs."""

    network: NetworkInfo
    inputs: tuple[str, ...]
    use: NetworkUse


@router.get("/workers")
def read_workers(request: Request, subject: access.Reader, session: ReaderDep) -> HTMLResponse:
    """Show the processes that measure, and the devices that they measure on."""
    rows = [
        _worker_row(worker) for worker in catalogue.list_workers(session, _LIMIT, subject.viewer)
    ]
    devices = [_device_row(device) for device in catalogue.list_devices(session, subject.viewer)]
    devices.sort(key=lambda row: _ORDER.get(row.state, len(_ORDER)))
    shown = devices[:_MAX_DEVICES]
    jobs = {row.worker.job_id for row in rows} | {row.device.job_id for row in shown}
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
    uses = catalogue.network_uses(
        session, [network.id for network in shown], n_jobs=_N_JOBS, viewer=subject.viewer
    )
    return render(
        request,
        "networks.html",
        rows=[
            NetworkRow(
                network, tuple(_input(*item) for item in network.inputs.items()), uses[network.id]
            )
            for network in shown
        ],
        first_page="/networks" if cursor else None,
        next_page="/networks" + query([("cursor", shown[-1].id)]) if more else None,
    )


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
    name = str(device.pop("name", "") or "unnamed device")
    details = tuple((str(key), str(value)) for key, value in sorted(device.items()))
    return WorkerRow(worker, state, name, details)


def _device_row(device: DeviceInfo) -> DeviceRow:
    state = device.state if device.alive else "offline"
    return DeviceRow(device, state, str(device.fingerprint.get("name") or "unnamed device"))


def _input(name: str, spec: object) -> str:
    if isinstance(spec, dict) and "shape" in spec:
        shape = ",".join(str(size) for size in spec["shape"])
        return f"{name} [{shape}] {spec.get('dtype', '')}"
    return name
