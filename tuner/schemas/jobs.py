"""Jobs: their tables, picks, histories, events and builds."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tuner.schemas.base import Schema


@dataclass(frozen=True, kw_only=True)
class JobSummary(Schema):
    """A job in a list.

    Attributes:
        id: Number of the job.
        name: Name for people.
        state: queued, running, paused, done, failed or cancelled.
        message: Reason for the state, if there is one.
        phase: Current activity of a running job.
        network_id: Number of the network; None until the model was loaded.
        network: Name of the network.
        target_id: Number of the target; None until the model was loaded.
        target: Canonical JSON of the target.
        device: Name of the device.
        objective: Name of the function that the job minimises.
        seed: Seed of search and scheduler.
        priority: Exponent of the share of device time; one more doubles it.
        budget_trials: Limit of trials.
        budget_secs: Limit of time.
        trials: Trials that the job paid for.
        spent_trials: Trials that count against the budget, those of other jobs included.
        spent_secs: Time that the job has spent.
        total_latency_secs: Estimated latency of the network: the weighted sum of its current
            best records.
        quarantined: True if an administrator has to release the job; the message has the reason.
        n_events: Number of the last event; it grows with every change.
        from_service: True for a job of the service, False for one of a command line.
        owner: Name of the token that the job belongs to; None for the administrators.
        project: Project whose tokens may read the job.
        tags: Words by which people find the job, sorted.
        note: Text of people about the job.
        created: Time of the request.
        updated: Time of the last change.
    """

    id: int
    name: str
    state: str
    message: str | None = None
    phase: str | None = None
    network_id: int | None = None
    network: str | None = None
    target_id: int | None = None
    target: str | None = None
    device: str | None = None
    objective: str
    seed: int
    priority: int
    budget_trials: int | None = None
    budget_secs: float | None = None
    trials: int
    spent_trials: int
    spent_secs: float
    total_latency_secs: float | None = None
    quarantined: bool = False
    n_events: int
    from_service: bool
    owner: str | None = None
    project: str | None = None
    tags: list[str] = field(default_factory=list)
    note: str | None = None
    created: datetime
    updated: datetime


@dataclass(frozen=True, kw_only=True)
class PickView(Schema):
    """A decision to spend a round on a task.

    Attributes:
        sequence: Number of the pick in its job, from 1.
        task: Row of the task in the table; None if the network no longer has it.
        task_id: Number of the task.
        task_name: Name of the task.
        n_trials: Trials that the pick buys.
        reason: Reason in a word.
        why: Reason in a sentence, with the numbers behind it.
        terms: Every term of the decision.
        done: True once the round is over.
        n_measured: Trials recorded so far.
        n_failed: Recorded trials that failed.
        secs: Duration of the round.
        total_latency_secs: Latency of the network after the round, before any finals.
        created: Time of the decision.
    """

    sequence: int
    task: int | None = None
    task_id: int
    task_name: str
    n_trials: int
    reason: str
    why: str
    terms: dict[str, Any]
    done: bool
    n_measured: int
    n_failed: int
    secs: float | None = None
    total_latency_secs: float | None = None
    created: datetime


@dataclass(frozen=True, kw_only=True)
class TaskView(Schema):
    """One row of the task scheduler table.

    Attributes:
        id: Row, from 0.
        task_id: Number of the task.
        workload: Hash of the workload.
        name: Name for people.
        weight: Calls in one inference.
        flop: Floating-point operations of one call.
        latency_secs: Latency of one call, by the best record.
        gflops: Billions of operations a second; 0 while there is no best record.
        share: Part of the network's latency, from 0 to 1.
        roof_secs: Latency that no kernel can beat, by operations and bytes at the peaks
            of the device; None if unknown.
        roof_share: Roof divided by latency: 1 at the roof.
        trials: Trials spent on the task by all jobs.
        failed: Trials that failed.
        exhausted: True if the search finds no candidate that was not tried.
        gradient: Expected decrease of the objective by one more round, as the allocator ranks
            tasks; seconds where the objective is a latency.
        running: True while a round of this job runs.
        last_pick: Last pick of this job for the task.
        variant: Variant of the best record; empty for the workload itself.
        origin: Source that proposed the best record; empty if unknown.
    """

    id: int
    task_id: int
    workload: str
    name: str
    weight: int
    flop: float
    latency_secs: float | None = None
    gflops: float
    share: float
    roof_secs: float | None = None
    roof_share: float | None = None
    trials: int
    failed: int
    exhausted: bool
    gradient: float | None = None
    running: bool
    last_pick: PickView | None = None
    variant: str = ""
    origin: str = ""


@dataclass(frozen=True, kw_only=True)
class OutlookView(Schema):
    """Forecast of what ``n_trials`` more trials save of the objective; ``spread`` is one sigma."""

    n_trials: int
    saving: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class SplitView(Schema):
    """The network of a job as it was split into tasks.

    Attributes:
        sha256: Hash of the cleaned model.
        kernel_calls: Kernel launches in one inference, tuned or not; None where several
            networks share the job.
        notes: Notes of the extraction for people, such as operators that stay untuned.
        device: Fingerprint of the device: names, versions, number of cores.
    """

    sha256: str
    kernel_calls: int | None = None
    notes: list[str]
    device: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class JobView(Schema):
    """The task scheduler table of a job.

    Attributes:
        job: The job.
        tasks: Rows of the table, in the order of the network.
        outlook: Forecast of what more trials save.
        last_pick: Last pick of the job.
        split: The network as it was split; None until the model was loaded.
        untuned_latency_secs: Estimated latency of the network without tuning, by the first trial
            of each task; None if one of them was not of a schedule by rule.
    """

    job: JobSummary
    tasks: list[TaskView]
    outlook: OutlookView | None = None
    last_pick: PickView | None = None
    split: SplitView | None = None
    untuned_latency_secs: float | None = None


@dataclass(frozen=True, kw_only=True)
class FailureView(Schema):
    """Trials of a job that failed in one way, with the message of the last of them."""

    kind: str
    trials: int
    record: int
    message: str
    worker: str


@dataclass(frozen=True, kw_only=True)
class HistoryPoint(Schema):
    """A job after one of its rounds: its trials and seconds so far, and the latency then."""

    pick: int
    trials: int
    secs: float
    total_latency_secs: float | None = None


@dataclass(frozen=True, kw_only=True)
class TaskTrials(Schema):
    """Trials of a task, by its number, after each point; ``task`` None adds up all other tasks."""

    task: int | None = None
    name: str
    trials: list[int]


@dataclass(frozen=True, kw_only=True)
class HistoryView(Schema):
    """A job over time."""

    job: int
    points: list[HistoryPoint]
    tasks: list[TaskTrials]


@dataclass(frozen=True, kw_only=True)
class Event(Schema):
    """An event of a job; ``sequence`` counts from 1 without a gap."""

    sequence: int
    kind: str
    created: datetime
    data: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Build(Schema):
    """A requested library; ``state`` is queued, running, done or failed.

    One that is ``quarantined`` is failed until an administrator releases its job. One with
    ``profile`` is done once the library was profiled; ``message`` says why it could not be.
    """

    id: int
    job_id: int
    model_index: int
    strict: bool
    state: str
    profile: bool = False
    message: str | None = None
    quarantined: bool = False
    library_key: str | None = None
    sha256: str | None = None
    n_bytes: int | None = None
    created: datetime
    updated: datetime


@dataclass(frozen=True, kw_only=True)
class WebhookView(Schema):
    """An address that hears of the end of a job, and the delivery for its last end.

    Attributes:
        of_service: True for the address of the service, False for that of the job.
        host: Host of the address, whose path may be a secret.
        state: State that is or was delivered; None before the first end.
        attempts: Number of attempts to deliver it.
        attempted: Time of the last attempt.
        status: Outcome of the last attempt.
        delivered: True once the receiver accepted it.
        due: Time of the next attempt; None if there is none.
    """

    of_service: bool
    host: str
    state: str | None = None
    attempts: int
    attempted: datetime | None = None
    status: str | None = None
    delivered: bool
    due: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Links(Schema):
    """Addresses of what belongs to a job; ``page`` is the one for people."""

    self: str
    tasks: str
    picks: str
    history: str
    events: str
    build: str
    library: str
    page: str


@dataclass(frozen=True, kw_only=True)
class Submitted(Schema):
    """The job of a request; ``created`` is False if the job existed before."""

    job: JobSummary
    created: bool
    links: Links


@dataclass(frozen=True, kw_only=True)
class JobDetails(Schema):
    """A job with its forecast, failures, builds and webhooks; see :class:`JobView`."""

    job: JobSummary
    split: SplitView | None = None
    outlook: OutlookView | None = None
    last_pick: PickView | None = None
    untuned_latency_secs: float | None = None
    failures: list[FailureView]
    builds: list[Build]
    webhooks: list[WebhookView] = field(default_factory=list)
    links: Links
