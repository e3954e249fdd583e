"""Tables of the service: tokens, audit log, webhooks, leases, workers, devices and builds."""

from datetime import datetime
from typing import Any, Literal

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, Text
from sqlalchemy.orm import Mapped, mapped_column

from records.models import BIG, Base, now

DeviceState = Literal["measuring", "idle", "apart", "lost"]


class ApiToken(Base):
    """A token of the REST API; only its SHA-256, ``digest``, is stored.

    ``created`` and ``expires`` are those of its secret, which a renewal replaces.
    ``project`` names the group whose jobs the token may read; ``quotas`` replace those of the
    service, see :mod:`records.service.owners.quotas`.
    """

    __tablename__ = "api_token"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    digest: Mapped[str] = mapped_column(unique=True)
    scopes: Mapped[list[str]]
    project: Mapped[str | None]
    quotas: Mapped[dict[str, Any] | None]
    created: Mapped[datetime] = mapped_column(default=now)
    expires: Mapped[datetime | None]
    revoked: Mapped[datetime | None]
    last_used: Mapped[datetime | None]


class AuditEvent(Base):
    """An action requested from the service; ``subject`` is a token's name or ``anonymous``."""

    __tablename__ = "audit_event"

    id: Mapped[int] = mapped_column(BIG, primary_key=True)
    created: Mapped[datetime] = mapped_column(default=now, index=True)
    subject: Mapped[str]
    address: Mapped[str]
    action: Mapped[str]
    job_id: Mapped[int | None] = mapped_column(ForeignKey("job.id"), index=True)
    detail: Mapped[dict[str, Any]]


class Upload(Base):
    """A model of a job; ``n_bytes`` counts against the owner's quotas.

    ``sent`` is false for a model that an earlier job had brought.
    """

    __tablename__ = "upload"
    __table_args__ = (Index(None, "owner", "created"),)

    id: Mapped[int] = mapped_column(BIG, primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("job.id"), index=True)
    owner: Mapped[str | None]
    sha256: Mapped[str]
    n_bytes: Mapped[int] = mapped_column(BigInteger)
    sent: Mapped[bool] = mapped_column(default=True)
    created: Mapped[datetime] = mapped_column(default=now)


class IdempotencyKey(Base):
    """The request behind a client's idempotency key; ``fingerprint`` is the request's hash."""

    __tablename__ = "idempotency_key"

    subject: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    fingerprint: Mapped[str]
    job_id: Mapped[int] = mapped_column(ForeignKey("job.id"))
    created: Mapped[datetime] = mapped_column(default=now)


class Webhook(Base):
    """An address that hears of the end of a job; see :mod:`records.service.webhooks`.

    ``delivery`` and ``state`` are those of the last end, ``status`` is the outcome of the last
    attempt to deliver it. ``due`` is the time of the next attempt, null if there is none.
    """

    __tablename__ = "webhook"

    job_id: Mapped[int] = mapped_column(ForeignKey("job.id"), primary_key=True)
    of_service: Mapped[bool] = mapped_column(primary_key=True)
    url: Mapped[str]
    delivery: Mapped[str | None]
    state: Mapped[str | None]
    attempts: Mapped[int] = mapped_column(default=0)
    attempted: Mapped[datetime | None]
    due: Mapped[datetime | None] = mapped_column(index=True)
    status: Mapped[str | None]
    delivered: Mapped[bool] = mapped_column(default=False)


class Lease(Base):
    """A role that one process holds at a time; ``epoch`` grows each time it is acquired."""

    __tablename__ = "lease"

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    epoch: Mapped[int] = mapped_column(BigInteger)
    expires: Mapped[datetime]


class Worker(Base):
    """A process that measures or is on standby; ``busy_share`` covers the last minute.

    ``progress`` is the last time at which its main loop was seen to run.
    """

    __tablename__ = "worker"

    id: Mapped[int] = mapped_column(BIG, primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    host: Mapped[str]
    pid: Mapped[int]
    role: Mapped[str]
    device: Mapped[dict[str, Any]]
    job_id: Mapped[int | None] = mapped_column(ForeignKey("job.id"))
    activity: Mapped[str]
    busy_secs: Mapped[float] = mapped_column(default=0.0)
    busy_share: Mapped[float] = mapped_column(default=0.0)
    started: Mapped[datetime] = mapped_column(default=now)
    heartbeat: Mapped[datetime] = mapped_column(default=now)
    progress: Mapped[datetime | None]
    stopped: Mapped[datetime | None]


class DeviceStatus(Base):
    """The last report on a device by its process; see :mod:`records.service.devices`."""

    __tablename__ = "device_status"
    __table_args__ = (
        CheckConstraint("state IN ('measuring', 'idle', 'apart', 'lost')", "state_known"),
    )

    name: Mapped[str] = mapped_column(primary_key=True)
    worker: Mapped[str]
    host: Mapped[str]
    fingerprint: Mapped[dict[str, Any]]
    state: Mapped[DeviceState] = mapped_column(Text)
    reason: Mapped[str]
    busy_share: Mapped[float]
    busy_secs: Mapped[float]
    job_id: Mapped[int | None] = mapped_column(ForeignKey("job.id"))
    heartbeat: Mapped[datetime] = mapped_column(default=now)


class RemoteDevice(Base):
    """A process that serves over HTTPS; see :mod:`records.service.remote_devices`.

    ``n_builders`` is the number of builds that it does at a time; 0 for a device, which measures.
    ``gpu`` describes the GPU of a process that measures packs, and answers no calls.
    """

    __tablename__ = "remote_device"

    name: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    key: Mapped[str]
    heartbeat: Mapped[datetime]
    n_builders: Mapped[int] = mapped_column(default=0)
    gpu: Mapped[dict[str, Any] | None]


class RemoteCall(Base):
    """A call of a function of the engine on a remote device.

    ``files`` are the digests of the files that it needs, ``key`` is that of the process that leased
    it; arguments and answer are MessagePack.
    """

    __tablename__ = "remote_call"

    id: Mapped[str] = mapped_column(primary_key=True)
    device: Mapped[str] = mapped_column(index=True)
    function: Mapped[str]
    arguments: Mapped[bytes]
    files: Mapped[list[str]]
    timeout_secs: Mapped[float]
    key: Mapped[str | None]
    answer: Mapped[bytes | None]


class OfferedPack(Base):
    """A pack that devices over HTTPS measure; see :mod:`records.service.offered_packs`.

    ``gpu`` describes the first GPU that measured it; only if it ``has_results``, others of another
    kind get it no more. ``device`` and ``key`` are those of the process that has leased it.
    ``attempts`` counts the leases of each GPU since the last results.
    """

    __tablename__ = "offered_pack"

    pack: Mapped[str] = mapped_column(primary_key=True)
    sha256: Mapped[str]
    n_bytes: Mapped[int] = mapped_column(BigInteger)
    capabilities: Mapped[list[str]]
    minutes: Mapped[float]
    created: Mapped[datetime] = mapped_column(default=now)
    ended: Mapped[datetime | None]
    gpu: Mapped[dict[str, Any] | None]
    device: Mapped[str | None]
    key: Mapped[str | None]
    n_lines: Mapped[int] = mapped_column(default=0)
    has_results: Mapped[bool] = mapped_column(default=False)
    attempts: Mapped[dict[str, Any]] = mapped_column(default=dict)
    problem: Mapped[str | None]


class PackPortion(Base):
    """Lines of the results of an offered pack, from ``first_line`` on."""

    __tablename__ = "pack_portion"

    pack: Mapped[str] = mapped_column(ForeignKey("offered_pack.pack"), primary_key=True)
    first_line: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    lines: Mapped[str]


class Calibration(Base):
    """Shortest sample of a kernel, identified by its hash, on a device, seconds."""

    __tablename__ = "calibration"
    __table_args__ = (Index(None, "target_id", "kernel", "device", "id"),)

    id: Mapped[int] = mapped_column(BIG, primary_key=True)
    device: Mapped[str]
    host: Mapped[str]
    target_id: Mapped[int] = mapped_column(ForeignKey("target.id"))
    kernel: Mapped[str]
    secs: Mapped[float]
    created: Mapped[datetime] = mapped_column(default=now)


class KernelCode(Base):
    """A part of a record's code; see :mod:`records.service.kernel_codes`.

    It waits for a worker until it has a ``text``, or a ``message`` that says why it has none.
    """

    __tablename__ = "kernel_code"

    record_id: Mapped[int] = mapped_column(BIG, ForeignKey("measure_record.id"), primary_key=True)
    part: Mapped[str] = mapped_column(primary_key=True)
    asked: Mapped[datetime]
    attempts: Mapped[int] = mapped_column(default=0)
    text: Mapped[str | None]
    message: Mapped[str | None]


class Build(Base):
    """A requested build of a job's network into a library.

    :mod:`records.tuning.attempts` explains ``attempts`` and ``quarantined``.
    """

    __tablename__ = "build"
    __table_args__ = (
        CheckConstraint("state IN ('queued', 'running', 'done', 'failed')", "state_known"),
        Index(None, "job_id", "id"),
    )

    id: Mapped[int] = mapped_column(BIG, primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("job.id"))
    model_index: Mapped[int] = mapped_column(default=0)
    strict: Mapped[bool] = mapped_column(default=False)
    profile: Mapped[bool] = mapped_column(default=False)
    state: Mapped[str] = mapped_column(default="queued", index=True)
    message: Mapped[str | None]
    attempts: Mapped[int] = mapped_column(default=0)
    quarantined: Mapped[bool] = mapped_column(default=False)
    library_key: Mapped[str | None]
    archive: Mapped[str | None]  # file name below the archives of the data directory
    sha256: Mapped[str | None]
    n_bytes: Mapped[int | None] = mapped_column(BigInteger)
    created: Mapped[datetime] = mapped_column(default=now)
    updated: Mapped[datetime] = mapped_column(default=now, onupdate=now)
