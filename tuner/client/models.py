"""What a service answers beside the views of :mod:`tuner.schemas`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypedDict

from tuner.schemas import FailureView, JobSummary, OutlookView, PickView


class TuneFields(TypedDict, total=False):
    """Options of a job; what is left out is left to the service.

    Mappings are by the name of a network; ``""`` is the only one.
    """

    target: str
    inputs: Mapping[str, Sequence[int]]
    trials: int | None
    seconds: float | None
    trials_per_round: int | None
    objective: str
    importance: Mapping[str, float]
    require_ms: Mapping[str, float]
    baseline_ms: Mapping[str, float]
    patience: int | None
    allocator: str
    priority: int | None
    stop_below_ms: float | None
    cost_model: str
    seed: int
    random_weights: int | None
    name: str
    number: int
    repeat: int
    min_repeat_ms: int
    cache_flush: bool
    cooldown_ms: int
    run_timeout: float
    build_timeout: float


@dataclass(frozen=True)
class Submitted:
    """A job that was asked for; ``created`` is False if it was there before."""

    job: JobSummary
    created: bool
    links: dict[str, str]


@dataclass(frozen=True)
class Event:
    """Something that happened to a job; numbers begin at 1 and have no gaps."""

    sequence: int
    kind: str
    created: datetime
    data: dict[str, Any]


@dataclass(frozen=True)
class Build:
    """A library that was asked for: queued, running, done or failed."""

    id: int
    job_id: int
    model_index: int
    strict: bool
    state: str
    message: str | None
    library_key: str | None
    sha256: str | None
    n_bytes: int | None
    created: datetime
    updated: datetime


@dataclass(frozen=True)
class JobDetails:
    """A job with what belongs to it."""

    job: JobSummary
    outlook: OutlookView | None
    last_pick: PickView | None
    failures: list[FailureView]
    builds: list[Build]
    links: dict[str, str]


@dataclass(frozen=True)
class Imported:
    """What an import did; ``torn`` is 1 if its last line was cut off."""

    added: int
    known: int
    torn: int


@dataclass(frozen=True)
class NetworkInfo:
    """A network that the service knows."""

    id: int
    name: str
    sha256: str
    created: datetime | None = None


@dataclass(frozen=True)
class NetworkTask:
    """A task of a network; ``latency_secs`` of one call, by its best record."""

    task_id: int
    workload: str
    name: str
    weight: int
    flop: float
    latency_secs: float | None


@dataclass(frozen=True)
class AuditEntry:
    """What somebody asked for; ``subject`` is the name of a token, or anonymous."""

    created: datetime
    subject: str
    address: str
    action: str
    job_id: int | None
    detail: dict[str, Any]


@dataclass(frozen=True)
class TargetInfo:
    """A target that something was measured on, with the fingerprint of its device."""

    id: int
    spec: str
    device: dict[str, Any]


@dataclass(frozen=True)
class WorkerInfo:
    """A process that measures, or stands by to; ``busy_share`` is that of the last minute."""

    name: str
    host: str
    pid: int
    role: str
    activity: str
    device: dict[str, Any] = field(default_factory=dict)
    job_id: int | None = None
    busy_secs: float = 0.0
    busy_share: float = 0.0
    alive: bool | None = None
    started: datetime | None = None
    heartbeat: datetime | None = None
    stopped: datetime | None = None


@dataclass(frozen=True)
class DeviceInfo:
    """A device: ``measuring``, ``idle``, or why it is ``apart`` from the others or ``lost``."""

    name: str
    state: str
    reason: str = ""
    worker: str = ""
    host: str = ""
    fingerprint: dict[str, Any] = field(default_factory=dict)
    job_id: int | None = None
    busy_secs: float = 0.0
    busy_share: float = 0.0
    alive: bool | None = None
    heartbeat: datetime | None = None


@dataclass(frozen=True)
class LibraryInfo:
    """A library in the build cache of the service."""

    key: str
    network_id: int | None = None
    target_id: int | None = None
    created: datetime | None = None


@dataclass(frozen=True)
class Health:
    """How a service is.

    Attributes:
        ready: Whether it can serve: its database answers.
        detail: What it says of itself, or why it is not ready.
        version: Of the service, if it says.
        skew_secs: Its clock less ours, give or take a second; None if it does not say.
    """

    ready: bool
    detail: str
    version: str | None
    skew_secs: float | None
