"""What people are shown of jobs, as plain data: the same for a terminal, a page and a client.

Latencies and durations in seconds; None where nothing is known yet.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class JobSummary:
    """A job in a list.

    Attributes:
        id: Number of the job.
        name: For people.
        state: queued, running, paused, done, failed or cancelled.
        message: Why it is in that state, where there is something to say.
        phase: What goes on, while it runs.
        network_id: Its network, once its model was loaded.
        network: Name of the network.
        target_id: Its target, once its model was loaded.
        target: Canonical JSON of the target.
        device: Name of the device.
        objective: What it minimises.
        seed: Of search and scheduler.
        priority: Each step doubles its share of device time.
        budget_trials: Limit.
        budget_secs: Limit.
        trials: It has paid for.
        spent_trials: That count against its budget.
        spent_secs: It has spent.
        total_latency_secs: Of the network, estimated from its best records.
        n_events: That happened to it; a version of everything shown of it.
        from_service: Whether the service runs it; if not, a command line does.
        created: When it was asked for.
        updated: When it last changed.
    """

    id: int
    name: str
    state: str
    message: str | None
    phase: str | None
    network_id: int | None
    network: str | None
    target_id: int | None
    target: str | None
    device: str | None
    objective: str
    seed: int
    priority: int
    budget_trials: int | None
    budget_secs: float | None
    trials: int
    spent_trials: int
    spent_secs: float
    total_latency_secs: float | None
    n_events: int
    from_service: bool
    created: datetime
    updated: datetime


@dataclass(frozen=True)
class PickView:
    """A decision to spend a round on a task.

    Attributes:
        sequence: Its number in the job, from 1.
        task: Row of the task in the table; None if the network does not have it any more.
        task_id: The task.
        task_name: Its name.
        n_trials: Trials it bought.
        reason: In a word.
        why: In a sentence, with the numbers behind it.
        terms: Every term of the decision.
        done: Whether the round is over.
        n_measured: Trials recorded so far.
        n_failed: Those of them that failed.
        secs: How long the round took.
        total_latency_secs: Of the network, after the round.
        created: When it was made.
    """

    sequence: int
    task: int | None
    task_id: int
    task_name: str
    n_trials: int
    reason: str
    why: str
    terms: dict[str, Any]
    done: bool
    n_measured: int
    n_failed: int
    secs: float | None
    total_latency_secs: float | None
    created: datetime


@dataclass(frozen=True)
class TaskView:
    """One line of the task scheduler table.

    Attributes:
        id: Row.
        task_id: The task.
        workload: Its hash.
        name: For people.
        weight: Calls in one inference.
        flop: Floating-point operations of one call.
        latency_secs: Of one call, by its best record.
        gflops: Billions of operations a second; 0 before anything ran.
        share: Of the network's latency, from 0 to 1.
        trials: Spent on it, by whomever.
        failed: Trials that failed.
        exhausted: Whether its space has nothing left to try.
        gradient: What a round is expected to take off the objective, as its allocator ranks
            tasks; seconds where the objective is a latency.
        running: Whether its round goes on now.
        last_pick: The last decision of this job for it.
    """

    id: int
    task_id: int
    workload: str
    name: str
    weight: int
    flop: float
    latency_secs: float | None
    gflops: float
    share: float
    trials: int
    failed: int
    exhausted: bool
    gradient: float | None
    running: bool
    last_pick: PickView | None


@dataclass(frozen=True)
class OutlookView:
    """What more trials are forecast to save of the objective, with its standard deviation."""

    n_trials: int
    saving: float
    spread: float


@dataclass(frozen=True)
class SplitView:
    """The network of a job as it was split into tasks.

    Attributes:
        sha256: Identifies the network.
        kernel_calls: In one inference, tuned or not; None for several networks in one.
        notes: What a person should know, such as operators left untuned.
        device: What its target was described from: names, versions, number of cores.
    """

    sha256: str
    kernel_calls: int | None
    notes: list[str]
    device: dict[str, Any]


@dataclass(frozen=True)
class JobView:
    """The task scheduler table of a job, and what belongs beside it.

    ``split`` is None until the model was loaded.
    """

    job: JobSummary
    tasks: list[TaskView]
    outlook: OutlookView | None
    last_pick: PickView | None
    split: SplitView | None = None


@dataclass(frozen=True)
class FailureView:
    """Trials of a job that failed in one way, and what the last of them said."""

    kind: str
    trials: int
    record: int
    message: str
    worker: str


@dataclass(frozen=True)
class HistoryPoint:
    """Where a job stood after a round: its trials and seconds so far, and the latency."""

    pick: int
    trials: int
    secs: float
    total_latency_secs: float | None


@dataclass(frozen=True)
class TaskTrials:
    """Trials of a task after each point of a history; ``task`` None adds up all others."""

    task: int | None
    name: str
    trials: list[int]


@dataclass(frozen=True)
class HistoryView:
    """A job over time, in at most as many points as asked for."""

    job: int
    points: list[HistoryPoint]
    tasks: list[TaskTrials]


@dataclass(frozen=True)
class BestView:
    """The best record of a task.

    Attributes:
        record: Number of the measure record.
        task: Number of the task.
        workload: Its hash.
        name: For people.
        target_id: What it was measured on.
        latency_secs: Of one call.
        confirmed: Whether it was measured again, in turns with its rivals.
        created: When it was measured.
        gflops: Billions of operations a second.
        target: Canonical JSON of the target.
        device: Name of the device.
    """

    record: int
    task: int
    workload: str
    name: str
    target_id: int
    latency_secs: float
    confirmed: bool
    created: datetime
    gflops: float
    target: str
    device: str | None


@dataclass(frozen=True)
class RecordView:
    """A measure record: its samples, or the error instead.

    Attributes:
        record: Its number.
        task: Number of the task.
        workload: Hash of the task's workload.
        name: Of the task, for people.
        target_id: What it was measured on.
        trace_hash: Identifies the program among those of its task.
        latency_secs: Of one call; None for a failure.
        run_secs: Every sample.
        confirmed_secs: Samples of its final, in turns with its rivals.
        error_kind: How it failed.
        error_text: What was said.
        verified: Whether its output was compared with the reference.
        max_error: Largest difference seen.
        conditions: Of the device while it was timed, as far as it tells: clocks in MHz,
            temperature in degrees Celsius, and why it was ``throttled``.
        worker: The device that measured it.
        created: When.
        target: Canonical JSON of the target.
        device: Name of the device.
    """

    record: int
    task: int
    workload: str
    name: str
    target_id: int
    trace_hash: str
    latency_secs: float | None
    run_secs: list[float] | None
    confirmed_secs: list[float] | None
    error_kind: str | None
    error_text: str | None
    verified: bool
    max_error: float | None
    conditions: dict[str, Any] | None
    worker: str
    created: datetime
    target: str
    device: str | None
