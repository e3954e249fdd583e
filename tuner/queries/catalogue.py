"""Networks, targets, workers, devices, libraries, builds and the audit log, as shapes."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from records import bests, libraries, tasks
from records.models import Job, NetworkTask, Target, Task
from records.service import (
    builds,
    catalogue,
    devices,
    offered_packs,
    remote_devices,
    webhooks,
    workers,
)
from records.service.owners import audit
from records.service.owners.access import EVERYTHING, Viewer, visible_jobs
from records.service.service_models import Build as BuildRow
from records.service.service_models import OfferedPack, RemoteDevice
from records.targets import device_name
from tuner import schemas
from tuner.jobs.submission import names_of
from tuner.schemas.base import Schema

Shape = TypeVar("Shape", bound=Schema)


@dataclass(frozen=True)
class NetworkUse:
    """The targets of a network, each with its number of tasks, and its newest jobs.

    Attributes:
        targets: Name of the device and number of tasks, for each target.
        jobs: Numbers of the jobs, the newest first.
    """

    targets: tuple[tuple[str, int], ...]
    jobs: tuple[int, ...]


def list_networks(
    session: Session, before: int | None, limit: int, viewer: Viewer = EVERYTHING
) -> list[schemas.NetworkInfo]:
    """Return at most ``limit`` networks of a viewer's jobs before a number, the newest first."""
    rows = catalogue.list_networks(session, before, limit, viewer)
    ids = [row.id for row in rows]
    targets = catalogue.targets_by_network(session, ids)
    names = _names(session, ids, viewer)
    return [
        replace(
            _shape(schemas.NetworkInfo, row, target_ids=list(targets.get(row.id, []))),
            name=names.get(row.id, row.name),
        )
        for row in rows
    ]


def _names(session: Session, network_ids: Sequence[int], viewer: Viewer) -> dict[int, str]:
    """Return the names that the newest jobs of a viewer give networks."""
    stmt = select(Job.network_id, Job.request).where(
        Job.network_id.in_(network_ids), Job.request.is_not(None), visible_jobs(viewer)
    )
    rows = session.execute(stmt.order_by(Job.id))
    named = {network_id: names_of(request) for network_id, request in rows}
    return {network_id: name for network_id, name in named.items() if name}


def network_tasks(session: Session, network_id: int, target_id: int) -> list[schemas.NetworkTask]:
    """Return the weighted tasks of a network on a target, each with its best latency."""
    weighted = tasks.weighted_tasks(session, network_id, target_id)
    best_secs = bests.best_latencies(session, [task.task_id for task in weighted])
    return [
        schemas.NetworkTask(
            task_id=task.task_id,
            workload=task.workload_hash,
            name=task.name,
            engine=task.engine,
            weight=task.weight,
            flop=task.flop,
            latency_secs=best_secs.get(task.task_id),
        )
        for task in weighted
    ]


def network_uses(
    session: Session, network_ids: Sequence[int], *, n_jobs: int, viewer: Viewer = EVERYTHING
) -> dict[int, NetworkUse]:
    """Return the targets and the newest jobs of networks that a viewer may see, by network."""
    targets: dict[int, list[tuple[str, int]]] = {}
    counts = (
        select(NetworkTask.network_id, Target.spec, Target.device, func.count())
        .join(Task, Task.id == NetworkTask.task_id)
        .join(Target, Target.id == Task.target_id)
        .where(NetworkTask.network_id.in_(network_ids))
        .group_by(NetworkTask.network_id, Target.id)
        .order_by(Target.id)
    )
    for network_id, spec, device, n_tasks in session.execute(counts):
        name = device_name(spec, device)
        targets.setdefault(network_id, []).append((name, n_tasks))
    jobs: dict[int, list[int]] = {}
    newest = (
        select(Job.id, Job.network_id)
        .where(Job.network_id.in_(network_ids), ~Job.hidden, visible_jobs(viewer))
        .order_by(Job.id.desc())
    )
    for job_id, network_id in session.execute(newest):
        jobs.setdefault(network_id or 0, []).append(job_id)
    return {
        network_id: NetworkUse(
            tuple(targets.get(network_id, ())), tuple(jobs.get(network_id, ())[:n_jobs])
        )
        for network_id in network_ids
    }


def list_targets(session: Session, before: int | None, limit: int) -> list[schemas.TargetInfo]:
    """Return at most ``limit`` targets, the newest first; only those before a number."""
    rows = catalogue.list_targets(session, before, limit)
    return [_shape(schemas.TargetInfo, row) for row in rows]


def list_workers(
    session: Session, limit: int, viewer: Viewer = EVERYTHING
) -> list[schemas.WorkerInfo]:
    """Return at most ``limit`` processes, the last seen first, without jobs of others."""
    rows = workers.list_workers(session)[:limit]
    seen = _seen_jobs(session, [row.job_id for row in rows], viewer)
    return [
        _shape(schemas.WorkerInfo, row, alive=workers.is_alive(row), job_id=seen.get(row.job_id))
        for row in rows
    ]


def list_devices(session: Session, viewer: Viewer = EVERYTHING) -> list[schemas.DeviceInfo]:
    """Return the devices, and the builders of other machines, by name, without jobs of others."""
    rows = devices.list_devices(session)
    seen = _seen_jobs(session, [row.job_id for row in rows], viewer)
    infos = [
        _shape(
            schemas.DeviceInfo,
            row,
            alive=devices.is_alive(row),
            job_id=seen.get(row.job_id),
            n_builders=0,
        )
        for row in rows
    ]
    # Other remote devices have a runner, which reports them.
    others = [row for row in remote_devices.devices(session) if row.n_builders or row.gpu]
    active = remote_devices.active(session) if others else frozenset()
    packs = {pack.device: pack for pack in offered_packs.list_packs(session)} if others else {}
    infos += [_other_device(row, row.name in active, packs.get(row.name)) for row in others]
    return sorted(infos, key=lambda info: info.name)


def _other_device(
    row: RemoteDevice, is_active: bool, pack: OfferedPack | None
) -> schemas.DeviceInfo:
    """Return builders of another machine, or a GPU that measures packs."""
    work = "building" if row.n_builders else "measuring"
    return schemas.DeviceInfo(
        name=row.name,
        worker=row.name,
        host=row.name.partition("/")[0],
        fingerprint=row.gpu or {},
        state=work if is_active or pack is not None else "idle",
        reason="" if pack is None else f"pack {pack.pack}, {pack.n_lines} lines of results",
        busy_secs=None,
        busy_share=None,
        n_builders=row.n_builders,
        heartbeat=row.heartbeat,
        alive=remote_devices.is_alive(row),
    )


def list_libraries(
    session: Session, before: int | None, limit: int, viewer: Viewer = EVERYTHING
) -> list[schemas.LibraryInfo]:
    """Return at most ``limit`` libraries of a viewer's jobs before a number, the newest first."""
    rows = libraries.list_libraries(session, before=before, limit=limit, viewer=viewer)
    return [_shape(schemas.LibraryInfo, row) for row in rows]


def list_audit(
    session: Session, *, job_id: int | None = None, before: int | None, limit: int
) -> list[schemas.AuditEntry]:
    """Return at most ``limit`` entries of the audit log, the newest first."""
    rows = audit.actions(session, job_id=job_id, before=before, limit=limit)
    return [_shape(schemas.AuditEntry, row) for row in rows]


def builds_of(session: Session, job_id: int) -> list[schemas.Build]:
    """Return the builds of a job, the newest first."""
    return [view_build(row) for row in builds.builds_of(session, job_id)]


def view_build(row: BuildRow) -> schemas.Build:
    """Return a build without the path of its archive, which stays on the service."""
    return _shape(schemas.Build, row)


def webhooks_of(session: Session, job_id: int) -> list[schemas.WebhookView]:
    """Return the webhooks of a job without their addresses, which may contain secrets."""
    return [
        _shape(schemas.WebhookView, row, host=urlsplit(row.url).hostname or "")
        for row in webhooks.of_job(session, job_id)
    ]


def _seen_jobs(
    session: Session, job_ids: Sequence[int | None], viewer: Viewer
) -> dict[int | None, int]:
    """Return the jobs among these that a viewer may see, by themselves; others are missing."""
    known = {job_id for job_id in job_ids if job_id is not None}
    stmt = select(Job.id).where(Job.id.in_(known), visible_jobs(viewer))
    return {job_id: job_id for job_id in session.scalars(stmt)}


def _shape(kind: type[Shape], row: object, **values: Any) -> Shape:
    """Fill a shape from the columns of a row that have the same names, and from values."""
    names = {field.name for field in fields(kind)} - values.keys()  # type: ignore[arg-type]
    return kind(**{name: getattr(row, name) for name in names}, **values)
