"""Options and results of measuring records again."""

from dataclasses import dataclass

from tuner.jobs.requests import ModelRequest
from tuner.jobs.target_relations import Differences


@dataclass(frozen=True)
class VerifyRequest:
    """Choice of the records to measure again.

    Attributes:
        target: Target, as a user writes it.
        models: Networks whose tasks are chosen; empty for all.
        job: Job whose tasks are chosen; None for all.
        top: Number of tasks, those that matter most; None for all.
        per_task: Number of the best records of each task.
        current: True for records of this version, instead of other versions.
        foreign: True to include records of other targets, from logs of other tools.
        sanitize: True to run verified records under the sanitizer of the device too.
    """

    target: str = "llvm"
    models: tuple[ModelRequest, ...] = ()
    job: int | None = None
    top: int | None = None
    per_task: int = 1
    current: bool = False
    foreign: bool = False
    sanitize: bool = False


@dataclass(frozen=True)
class Remeasured:
    """Result of measuring one record again.

    Attributes:
        workload: Hash of its workload.
        name: Name of the workload.
        weight: Calls of the workload.
        old_record: Id of the record.
        old_latency: Latency in that record, seconds.
        differs: Differences of its version; empty for a record of this version.
        foreign: True if another device measured it.
        record: Id of the new record, or of the old one if it is of this version; None if
            the worker was lost, or the trace got a record of this version from another process.
        latency: Latency now, seconds; None if it failed.
        error_kind: Kind of the error; None if it ran.
        best: True if it is the best record of this version now.
    """

    workload: str
    name: str
    weight: int
    old_record: int
    old_latency: float
    differs: Differences
    foreign: bool
    record: int | None
    latency: float | None
    error_kind: str | None
    error_text: str
    best: bool

    @property
    def change(self) -> float | None:
        """Change of the latency as a share of the old one: 0.5 for half as long again."""
        return None if self.latency is None else self.latency / self.old_latency - 1.0


@dataclass(frozen=True)
class Verified:
    """Results of measuring records again.

    Attributes:
        target: Canonical JSON of the target.
        rows: Results in the order of measuring.
        n_left: Tasks with records to measure again that were not chosen.
        secs: Duration, seconds.
    """

    target: str
    rows: tuple[Remeasured, ...]
    n_left: int
    secs: float

    @property
    def n_verified(self) -> int:
        """Number of records that ran and were verified."""
        return sum(1 for row in self.rows if row.latency is not None)
