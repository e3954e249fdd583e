"""A client of the service: submit networks, watch them being tuned, download libraries."""

from tuner.client.client import TunerClient
from tuner.client.errors import (
    AuthError,
    ConnectError,
    NotFoundError,
    RequestRejected,
    ServerError,
    ServiceError,
)
from tuner.client.models import Health, TuneFields
from tuner.schemas import (
    AuditEntry,
    Build,
    DeviceInfo,
    Event,
    Imported,
    JobDetails,
    LibraryInfo,
    NetworkInfo,
    NetworkTask,
    Submitted,
    TargetInfo,
    WorkerInfo,
)

__all__ = [
    "AuditEntry",
    "AuthError",
    "Build",
    "ConnectError",
    "DeviceInfo",
    "Event",
    "Health",
    "Imported",
    "JobDetails",
    "LibraryInfo",
    "NetworkInfo",
    "NetworkTask",
    "NotFoundError",
    "RequestRejected",
    "ServerError",
    "ServiceError",
    "Submitted",
    "TargetInfo",
    "TuneFields",
    "TunerClient",
    "WorkerInfo",
]
