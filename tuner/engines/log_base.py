"""The contract by which an engine reads and writes what the logs of other tools say.

The functions of :class:`LogEngine` are part of an engine module, and run in workers like the
others. How lines are laid out is known to :mod:`tuner.tuning_logs`; what a line says of a
workload, a target or a schedule is text here, and only the engine knows what it means.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class LoggedWorkload:
    """A workload that was rebuilt from a log; see :class:`tuner.engines.base.ExtractedTask`."""

    workload: str
    name: str
    ir: bytes
    flop: float


@dataclass(frozen=True)
class WorkloadText:
    """How a log names or holds a workload.

    Attributes:
        text: What :meth:`LogEngine.read_workload` reads, or what lines of the log name it by.
        ir: The workload in the form that the text means.
        arguments: What lines of the log say of its arguments, JSON; empty if they say nothing.
        note: What is to be known of this form; empty if it is the one that was measured.
    """

    text: str
    ir: bytes
    arguments: str = ""
    note: str = ""


@dataclass(frozen=True)
class TraceBatch:
    """Schedules of one workload, to be read from a log or written to one.

    Attributes:
        ir: The workload.
        target: Canonical JSON of the target.
        texts: What the log says of each, or the traces that a log is to hold.
    """

    ir: bytes
    target: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class TraceText:
    """A schedule that was read or written, or the reason why it was not.

    Attributes:
        text: The trace, or what a log says of it.
        module_hash: Hash of the program that it gives; empty if unknown.
        problem: Why there is none; empty if there is one.
    """

    text: str = ""
    module_hash: str = ""
    problem: str = ""


class LogEngine(Protocol):
    """What an engine offers to whoever reads and writes logs."""

    def read_workload(self, text: str) -> LoggedWorkload:
        """Rebuild a workload from a log that holds it.

        Raises:
            WorkError: If it cannot be rebuilt; the message says why.
        """

    def write_workload(self, ir: bytes) -> list[WorkloadText]:
        """Return how a log names or holds a workload: first as it is, then as others know it."""

    def read_target(self, text: str) -> str:
        """Return the canonical JSON of a target as a log writes it.

        Raises:
            TargetError: If it is unknown or malformed.
        """

    def write_target(self, spec: str) -> str:
        """Return a target as a log writes it, JSON."""

    def read_traces(self, batch: TraceBatch) -> list[TraceText]:
        """Return the trace of each schedule of a log; what cannot be replayed is a problem."""

    def write_traces(self, batch: TraceBatch) -> list[TraceText]:
        """Return what a log says of each trace, such that the other tool replays it alone."""
