"""Measure records and best records."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tuner.schemas.base import Schema


@dataclass(frozen=True, kw_only=True)
class BestView(Schema):
    """The best record of a task.

    Attributes:
        record: Number of the measure record.
        task: Number of the task.
        workload: Hash of the workload.
        name: Name of the workload, for people.
        target_id: Number of the target.
        latency_secs: Latency of one call.
        confirmed: True if the finals confirmed it, in turns with its rivals.
        created: Time of the measurement.
        gflops: Billions of operations a second.
        target: Canonical JSON of the target.
        device: Name of the device.
        variant: Variant that it is of; empty for the workload itself.
        origin: Source that proposed it: ``rules``, ``variants``, ``mutants``, ``evolution`` or
            ``random``, the first two with the name of the rule or variant behind a colon; empty
            if unknown.
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
    device: str | None = None
    variant: str = ""
    origin: str = ""


@dataclass(frozen=True, kw_only=True)
class RecordView(Schema):
    """A measure record: its samples, or the error instead.

    Attributes:
        record: Number of the record.
        task: Number of the task.
        workload: Hash of the task's workload.
        name: Name of the workload, for people.
        target_id: Number of the target.
        trace_hash: Hash of the trace, unique among those of the task.
        latency_secs: Latency of one call; None for a failure.
        run_secs: All samples.
        clock_factor: Part of the latency that divides the drift of the device out of the samples;
            None for 1.
        confirmed_secs: Samples of the finals, in turns with rivals.
        error_kind: Kind of failure.
        error_text: Message of the failure.
        verified: True if the output was compared with the reference.
        max_error: Largest difference from the reference.
        conditions: State of the device during timing, as far as it reports one: clocks in MHz,
            temperature in degrees Celsius, and the reasons it was ``throttled``.
        worker: Device that measured the record.
        created: Time of the measurement.
        target: Canonical JSON of the target.
        device: Name of the device.
        variant: Variant that it is of; empty for the workload itself.
        origin: Source that proposed it: ``rules``, ``variants``, ``mutants``, ``evolution`` or
            ``random``, the first two with the name of the rule or variant behind a colon; empty
            if unknown.
    """

    record: int
    task: int
    workload: str
    name: str
    target_id: int
    trace_hash: str
    latency_secs: float | None = None
    run_secs: list[float] | None = None
    clock_factor: float | None = None
    confirmed_secs: list[float] | None = None
    error_kind: str | None = None
    error_text: str | None = None
    verified: bool
    max_error: float | None = None
    conditions: dict[str, Any] | None = None
    worker: str
    created: datetime
    target: str
    device: str | None = None
    variant: str = ""
    origin: str = ""


@dataclass(frozen=True, kw_only=True)
class RecordDetails(RecordView):
    """A measure record with its trace, and what it belongs to.

    Attributes:
        trace: Decisions of the schedule, JSON.
        module_hash: Hash of the scheduled program; None if it was not built.
        engine: Engine of the workload.
        gflops: Billions of operations a second; 0 for a failure.
        final_secs: Latency of one call by the finals, which then counts; None if it was in none.
        is_best: True for the best record of its task.
        is_imported: True if no job paid for it here.
        job: Job that paid for it; None if that is another owner's.
        pick: Number of its pick in that job.
    """

    trace: str
    module_hash: str | None = None
    engine: str
    gflops: float
    final_secs: float | None = None
    is_best: bool
    is_imported: bool
    job: int | None = None
    pick: int | None = None


@dataclass(frozen=True, kw_only=True)
class CodePart(Schema):
    """A part of a record's code: schedule, source or assembly.

    Without a text and a message, it waits for a worker of the service.

    Attributes:
        part: Name of the part.
        text: The code.
        message: Reason for which there is none.
    """

    part: str
    text: str | None = None
    message: str | None = None


@dataclass(frozen=True, kw_only=True)
class RecordCode(Schema):
    """The parts of a record's code that were asked for."""

    record: int
    items: list[CodePart]


@dataclass(frozen=True, kw_only=True)
class Imported(Schema):
    """The result of an import; ``torn`` is 1 if the last line was cut off and left out.

    ``refused`` counts records that were left out because their workload is named like another
    one; ``refusals`` says which.
    """

    added: int
    known: int
    torn: int
    refused: int = 0
    refusals: list[str] = field(default_factory=list)
