"""The contract by which an engine reads and writes the contents of other tools' logs.

The functions of :class:`LogEngine` are part of an engine module, and run in workers like the
others. :mod:`tuner.tuning_logs` knows the layout of lines; workloads, targets and schedules in
them are texts here, which only the engine can interpret.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class LoggedWorkload:
    """A workload rebuilt from a log; see :class:`tuner.engines.base.ExtractedTask`."""

    workload: str
    name: str
    ir: bytes
    flop: float


@dataclass(frozen=True)
class WorkloadText:
    """A workload in one form that a log can refer to or include.

    Attributes:
        text: Text that :meth:`LogEngine.read_workload` reads, or key of the workload in the log.
        arguments: Description of its arguments in lines of the log, JSON; empty if not needed.
        note: Remark on this form; empty if it is the form that was measured.
    """

    text: str
    ir: bytes
    arguments: str = ""
    note: str = ""


@dataclass(frozen=True)
class TraceBatch:
    """Schedules of one workload to read from a log or to write to one.

    Attributes:
        target: Canonical JSON of the target.
        texts: Schedules in the notation of the log to read, or traces to write.
    """

    ir: bytes
    target: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class TraceText:
    """A schedule that was read or written, or the problem that prevented it.

    Attributes:
        text: The trace, or the schedule in the notation of the log.
        module_hash: Hash of the scheduled program; empty if unknown.
        problem: Reason why the text is empty.
    """

    text: str = ""
    module_hash: str = ""
    problem: str = ""


class LogEngine(Protocol):
    """The functions of an engine that import and export of logs need."""

    def read_workload(self, text: str) -> LoggedWorkload:
        """Rebuild a workload that a log includes.

        Raises:
            WorkError: If it cannot be rebuilt; the message gives the reason.
        """

    def write_workload(self, ir: bytes) -> list[WorkloadText]:
        """Return the forms of a workload for a log: its own first, then equivalent ones."""

    def read_target(self, text: str) -> str:
        """Return the canonical JSON of a target in the notation of a log.

        Raises:
            TargetError: If it is unknown or malformed.
        """

    def write_target(self, spec: str) -> str:
        """Return a target in the notation of a log, JSON."""

    def read_traces(self, batch: TraceBatch) -> list[TraceText]:
        """Return the trace of each schedule of a log, or its problem if it cannot be replayed."""

    def write_traces(self, batch: TraceBatch) -> list[TraceText]:
        """Return each trace in the notation of a log, complete enough for the other tool."""
