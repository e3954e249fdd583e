"""What requests and answers hold, beside the views that :mod:`tuner.schemas` has already."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from records import devices, workers
from records.models import Library, Network, Target
from records.service_models import AuditEvent, DeviceState, DeviceStatus, Worker
from records.service_models import Build as BuildRow
from tuner.jobs.requests import MOST_PRIORITY, MOST_TRIALS
from tuner.schemas import (
    BestView,
    FailureView,
    JobSummary,
    OutlookView,
    PickView,
    RecordView,
    SplitView,
)

#: The largest number that a row can have.
MOST = 2**31 - 1
MOST_SECS = 1e9


def storable(text: str) -> str:
    """Refuse text that PostgreSQL takes nowhere.

    Raises:
        ValueError: If it holds NUL or half a surrogate pair.
    """
    if "\x00" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError("contains NUL or half a character")
    return text


Text = Annotated[str, AfterValidator(storable)]
Id = Annotated[int, Path(ge=1, le=MOST)]
OptionalId = Annotated[int | None, Query(ge=1, le=MOST)]
Limit = Annotated[int, Query(ge=1, le=1000, description="Items on the page, at most.")]
Cursor = Annotated[
    str | None, Query(max_length=1000, description="`next` of the page before; opaque.")
]
Trials = Annotated[int, Field(ge=1, le=MOST_TRIALS)]
Seconds = Annotated[float, Field(gt=0, le=MOST_SECS, allow_inf_nan=False)]
Priority = Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]


class Body(BaseModel):
    """A JSON body; a field that nobody knows is refused."""

    model_config = ConfigDict(extra="forbid")


class BudgetIn(Body):
    """Limits to raise, at least one of them."""

    trials: Trials | None = None
    seconds: Seconds | None = None


class PriorityIn(Body):
    """A priority: each step doubles the share of device time."""

    priority: Priority


class BuildIn(Body):
    """What to build.

    Attributes:
        strict: Fail unless every task has a verified record.
        model_index: Which network, where the job has several.
    """

    strict: bool = False
    model_index: Annotated[int, Field(ge=0, le=1000)] = 0


@dataclass(frozen=True)
class Links:
    """Where to go on from a job; ``page`` is for people."""

    self: str
    tasks: str
    picks: str
    history: str
    events: str
    build: str
    library: str
    page: str


@dataclass(frozen=True)
class Submitted:
    """The job of a request, and whether it is new."""

    job: JobSummary
    created: bool
    links: Links


@dataclass(frozen=True)
class JobPage:
    """Jobs; ``next`` is the cursor of the next page, null on the last."""

    items: list[JobSummary]
    next: str | None


@dataclass(frozen=True)
class Build:
    """A library that was asked for; ``state`` is queued, running, done or failed."""

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
class JobDetail:
    """A job, and what belongs beside it."""

    job: JobSummary
    split: SplitView | None
    outlook: OutlookView | None
    last_pick: PickView | None
    failures: list[FailureView]
    builds: list[Build]
    links: Links


@dataclass(frozen=True)
class PickPage:
    """Picks, the newest first; ``next`` is the ``before`` of the next page."""

    items: list[PickView]
    next: int | None


@dataclass(frozen=True)
class Failures:
    """How trials failed."""

    items: list[FailureView]


@dataclass(frozen=True)
class BestPage:
    """Best records."""

    items: list[BestView]
    next: str | None


@dataclass(frozen=True)
class RecordPage:
    """Measure records, the newest first."""

    items: list[RecordView]
    next: str | None


@dataclass(frozen=True)
class Imported:
    """What an import did; ``torn`` is 1 if the last line was cut off and left out."""

    added: int
    known: int
    torn: int


@dataclass(frozen=True)
class NetworkOut:
    """A network with fixed shapes; ``target_ids`` are those it was split into tasks for."""

    id: int
    sha256: str
    name: str
    inputs: dict[str, Any]
    target_ids: list[int]
    created: datetime


@dataclass(frozen=True)
class NetworkPage:
    """Networks, the newest first."""

    items: list[NetworkOut]
    next: str | None


@dataclass(frozen=True)
class NetworkTask:
    """A task of a network; ``latency_secs`` of one call, by its best record."""

    task_id: int
    workload: str
    name: str
    engine: str
    weight: int
    flop: float
    latency_secs: float | None


@dataclass(frozen=True)
class NetworkTasks:
    """The tasks of a network on a target, in the network's own order."""

    network_id: int
    target_id: int
    items: list[NetworkTask]


@dataclass(frozen=True)
class TargetOut:
    """What is compiled for, on which device."""

    id: int
    spec: str
    device: dict[str, Any]
    fingerprint: str


@dataclass(frozen=True)
class TargetPage:
    """Targets, the newest first."""

    items: list[TargetOut]
    next: str | None


@dataclass(frozen=True)
class WorkerOut:
    """A process that measures, or stands by; ``busy_share`` of the last minute, from 0 to 1."""

    id: int
    name: str
    host: str
    pid: int
    role: str
    device: dict[str, Any]
    job_id: int | None
    activity: str
    busy_secs: float
    busy_share: float
    started: datetime
    heartbeat: datetime
    stopped: datetime | None
    alive: bool


@dataclass(frozen=True)
class DeviceOut:
    """A device; ``busy_share`` of the last minute, from 0 to 1; ``reason`` why it has no work."""

    name: str
    worker: str
    host: str
    fingerprint: dict[str, Any]
    state: DeviceState
    reason: str
    job_id: int | None
    busy_secs: float
    busy_share: float
    heartbeat: datetime
    alive: bool


@dataclass(frozen=True)
class Devices:
    """The devices, by name."""

    items: list[DeviceOut]


@dataclass(frozen=True)
class Workers:
    """The processes, those heard of last first."""

    items: list[WorkerOut]


@dataclass(frozen=True)
class LibraryOut:
    """A compiled network in the cache."""

    id: int
    key: str
    network_id: int | None
    target_id: int
    manifest: dict[str, Any]
    created: datetime


@dataclass(frozen=True)
class LibraryPage:
    """Libraries, the newest first."""

    items: list[LibraryOut]
    next: str | None


@dataclass(frozen=True)
class Action:
    """What somebody asked for; ``subject`` is the name of a token, or anonymous."""

    id: int
    created: datetime
    subject: str
    address: str
    action: str
    job_id: int | None
    detail: dict[str, Any]


@dataclass(frozen=True)
class ActionPage:
    """Actions, the newest first."""

    items: list[Action]
    next: str | None


def links_of(job_id: int) -> Links:
    """Return where to go on from a job."""
    at = f"/api/v1/jobs/{job_id}"
    names = ("tasks", "picks", "history", "events", "build", "library")
    return Links(self=at, page=f"/jobs/{job_id}", **{name: f"{at}/{name}" for name in names})


def build_of(row: BuildRow) -> Build:
    """Describe a build; where its archive lies stays with us."""
    return Build(**_columns(row, Build))


def network_of(row: Network, target_ids: Sequence[int]) -> NetworkOut:
    """Describe a network."""
    return NetworkOut(row.id, row.sha256, row.name, row.inputs, list(target_ids), row.created)


def target_of(row: Target) -> TargetOut:
    """Describe a target."""
    return TargetOut(**_columns(row, TargetOut))


def worker_of(row: Worker) -> WorkerOut:
    """Describe a process."""
    names = set(WorkerOut.__dataclass_fields__) - {"alive"}
    columns = {name: getattr(row, name) for name in names}
    return WorkerOut(**columns, alive=workers.is_alive(row))


def device_of(row: DeviceStatus) -> DeviceOut:
    """Describe a device."""
    names = set(DeviceOut.__dataclass_fields__) - {"alive"}
    columns = {name: getattr(row, name) for name in names}
    return DeviceOut(**columns, alive=devices.is_alive(row))


def library_of(row: Library) -> LibraryOut:
    """Describe a library; where it lies stays with us."""
    return LibraryOut(**_columns(row, LibraryOut))


def action_of(row: AuditEvent) -> Action:
    """Describe an action."""
    return Action(**_columns(row, Action))


def _columns(row: object, kind: type) -> dict[str, Any]:
    names = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return {name: getattr(row, name) for name in names}
