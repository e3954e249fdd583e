"""A client of the service: submit networks, watch them being tuned, download libraries."""

from tuner.client.client import TunerClient
from tuner.client.errors import Failed, NotAllowed, NotThere, Refused, ServiceError, Unreachable
from tuner.client.models import (
    AuditEntry,
    Build,
    DeviceInfo,
    Event,
    Health,
    Imported,
    JobDetails,
    LibraryInfo,
    NetworkInfo,
    NetworkTask,
    Submitted,
    TargetInfo,
    TuneFields,
    WorkerInfo,
)

__all__ = [
    "AuditEntry",
    "Build",
    "DeviceInfo",
    "Event",
    "Failed",
    "Health",
    "Imported",
    "JobDetails",
    "LibraryInfo",
    "NetworkInfo",
    "NetworkTask",
    "NotAllowed",
    "NotThere",
    "Refused",
    "ServiceError",
    "Submitted",
    "TargetInfo",
    "TuneFields",
    "TunerClient",
    "Unreachable",
    "WorkerInfo",
]
