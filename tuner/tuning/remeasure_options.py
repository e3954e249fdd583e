"""What measuring records again is asked to do, and what it comes to."""

from dataclasses import dataclass

from tuner.jobs.preparation import ModelRequest
from tuner.jobs.stale_records import Differences


@dataclass(frozen=True)
class VerifyRequest:
    """Which records to measure again.

    Attributes:
        target: What to measure on, as a user writes it.
        models: Only tasks of these networks.
        job: Only tasks of this job.
        top: At most so many tasks, those that matter most; None: all.
        per_task: So many of the best records of each task.
        current: The records of this version, instead of those of others.
        foreign: Also what logs of other tools say of other targets.
        sanitize: Run those that agree under the sanitizer of the device, too.
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
    """A record that was measured again.

    Attributes:
        workload: Hash of its workload.
        name: What that computes.
        weight: How often it is called.
        old_record: The record.
        old_latency: Seconds, when it was measured first.
        differs: What was different then; nothing for a record of this version.
        foreign: Whether it was measured on another device.
        record: The new record; None for one of this version, and where the worker was lost.
        latency: Seconds now; None if it failed.
        error_kind: How it failed, if it did.
        error_text: What the failed step said.
        best: Whether it is the best record of this version now.
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
        """How much longer it takes now, of what it took: 0.5 for half as long again."""
        return None if self.latency is None else self.latency / self.old_latency - 1.0


@dataclass(frozen=True)
class Verified:
    """What measuring again came to.

    Attributes:
        target: What was measured on, canonical.
        rows: Each record that was measured, in the order it was.
        n_left: Tasks with records to measure again beyond those asked for.
        secs: What it took.
    """

    target: str
    rows: tuple[Remeasured, ...]
    n_left: int
    secs: float

    @property
    def n_verified(self) -> int:
        """Records whose output agrees, and that have a latency."""
        return sum(1 for row in self.rows if row.latency is not None)
