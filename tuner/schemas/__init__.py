"""Shapes of jobs, records and devices, shared by the command line, REST and the client.

Plain data, each shape defined once: :mod:`tuner.queries` builds them out of the database,
``--json`` and the REST API print them, and :mod:`tuner.client` reads them back. Latencies and
durations are in seconds; None stands for what is not known yet.
"""

from tuner.schemas.base import Page
from tuner.schemas.catalogue import (
    AuditEntry,
    DeviceInfo,
    LibraryInfo,
    NetworkInfo,
    NetworkTask,
    QuotaUse,
    TargetInfo,
    TokenInfo,
    WebhookSecret,
    WorkerInfo,
)
from tuner.schemas.comparison import JobComparison, OwnTask, TaskComparison
from tuner.schemas.jobs import (
    Build,
    Event,
    FailureView,
    HistoryPoint,
    HistoryView,
    JobDetails,
    JobSummary,
    JobView,
    Links,
    OutlookView,
    PickView,
    SplitView,
    Submitted,
    TaskTrials,
    TaskView,
    WebhookView,
)
from tuner.schemas.records import (
    BestView,
    CodePart,
    Imported,
    RecordCode,
    RecordDetails,
    RecordView,
)
from tuner.schemas.remote import LeasedCall, LeasedCalls, LeasedPack

__all__ = [
    "AuditEntry",
    "BestView",
    "Build",
    "CodePart",
    "DeviceInfo",
    "Event",
    "FailureView",
    "HistoryPoint",
    "HistoryView",
    "Imported",
    "JobComparison",
    "JobDetails",
    "JobSummary",
    "JobView",
    "LeasedCall",
    "LeasedCalls",
    "LeasedPack",
    "LibraryInfo",
    "Links",
    "NetworkInfo",
    "NetworkTask",
    "OutlookView",
    "OwnTask",
    "Page",
    "PickView",
    "QuotaUse",
    "RecordCode",
    "RecordDetails",
    "RecordView",
    "SplitView",
    "Submitted",
    "TargetInfo",
    "TaskComparison",
    "TaskTrials",
    "TaskView",
    "TokenInfo",
    "WebhookSecret",
    "WebhookView",
    "WorkerInfo",
]
