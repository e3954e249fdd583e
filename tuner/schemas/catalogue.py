"""Networks, targets, workers, devices, libraries and the audit log of a service."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tuner.schemas.base import Schema


@dataclass(frozen=True, kw_only=True)
class NetworkInfo(Schema):
    """A network with fixed shapes; ``target_ids`` lists the targets it was split into tasks for."""

    id: int
    sha256: str
    name: str
    inputs: dict[str, Any] = field(default_factory=dict)
    target_ids: list[int] = field(default_factory=list)
    created: datetime


@dataclass(frozen=True, kw_only=True)
class NetworkTask(Schema):
    """A task of a network; ``latency_secs`` is that of one call, by the best record."""

    task_id: int
    workload: str
    name: str
    engine: str
    weight: int
    flop: float
    latency_secs: float | None = None


@dataclass(frozen=True, kw_only=True)
class TargetInfo(Schema):
    """A target: canonical JSON, fingerprint of the device, and the hash of both."""

    id: int
    spec: str
    device: dict[str, Any]
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class WorkerInfo(Schema):
    """A process that measures or is on standby; ``busy_share`` of the last minute, from 0 to 1."""

    id: int
    name: str
    host: str
    pid: int
    role: str
    device: dict[str, Any] = field(default_factory=dict)
    job_id: int | None = None
    activity: str
    busy_secs: float
    busy_share: float
    started: datetime
    heartbeat: datetime
    stopped: datetime | None = None
    alive: bool


@dataclass(frozen=True, kw_only=True)
class DeviceInfo(Schema):
    """A device, or the builders of another machine.

    Attributes:
        name: Name of the runner, unique.
        worker: Name of the process that reports it.
        host: Machine that the device is in.
        fingerprint: Properties by which devices are told apart; equal ones share jobs.
        state: measuring, building, idle, apart (it disagrees with its peers or slows down) or lost.
        reason: Reason for being apart or lost, or the pack that it measures.
        job_id: Job that it measures for.
        busy_secs: Time spent measuring, in total; None where it is not counted.
        busy_share: Part of the last minute spent measuring, from 0 to 1; None likewise.
        n_builders: Builds that builders do at a time; 0 for a device.
        heartbeat: Time of the last report.
        alive: True if the last report is recent.
    """

    name: str
    worker: str
    host: str
    fingerprint: dict[str, Any] = field(default_factory=dict)
    state: str
    reason: str
    job_id: int | None = None
    busy_secs: float | None = None
    busy_share: float | None = None
    n_builders: int = 0
    heartbeat: datetime
    alive: bool

    @property
    def status(self) -> str:
        """State, or offline if the last report is old."""
        return self.state if self.alive else "offline"

    @property
    def type(self) -> str:
        """Name of the hardware, or the number of builders."""
        kind = f"device of {self.host}"
        if self.n_builders:
            kind = f"{self.n_builders} builder{'' if self.n_builders == 1 else 's'}"
        return str(self.fingerprint.get("name") or kind)


@dataclass(frozen=True, kw_only=True)
class LibraryInfo(Schema):
    """A library in the build cache of a service."""

    id: int
    key: str
    network_id: int | None = None
    target_id: int
    manifest: dict[str, Any] = field(default_factory=dict)
    created: datetime


@dataclass(frozen=True, kw_only=True)
class QuotaUse(Schema):
    """A quota of a token; ``limit`` None is unlimited."""

    quota: str
    used: float
    limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class TokenInfo(Schema):
    """The token of a request: its name, its rights, and what its jobs use of its quotas."""

    name: str
    scopes: list[str]
    project: str | None = None
    max_priority: int
    quotas: list[QuotaUse] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class WebhookSecret(Schema):
    """The secret that signs the webhooks of a token's jobs."""

    secret: str


@dataclass(frozen=True, kw_only=True)
class AuditEntry(Schema):
    """A logged request; ``subject`` is the name of a token, or anonymous."""

    id: int
    created: datetime
    subject: str
    address: str
    action: str
    job_id: int | None = None
    detail: dict[str, Any]
