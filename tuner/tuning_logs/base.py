"""What a line of a log of another tool says, and what became of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tuner.engines.base import ErrorKind

# Lines of a stranger may all be wrong in a way of their own.
_MOST_REASONS = 50
_OTHER_REASONS = "other reasons"
_MOST_CHARACTERS = 300


class BadLine(Exception):  # noqa: N818  what went wrong is a better name
    """A line cannot be read, or is of no use; the message says why."""


@dataclass(frozen=True)
class Entry:
    """One measurement, in the words of the log; only the engine knows what its texts mean.

    Attributes:
        workload: Names the workload within the log.
        target: What it was measured for.
        trace: How it was scheduled.
        run_secs: Samples, seconds; None if it failed.
        error_kind: What failed; None if it ran.
        error_text: What the log says of the failure.
        created: When it was measured, if the log says so.
    """

    workload: str
    target: str
    trace: str
    run_secs: tuple[float, ...] | None
    error_kind: ErrorKind | None = None
    error_text: str = ""
    created: datetime | None = None


@dataclass
class Skips:
    """Lines that were left out: how many for each reason, and the first of them."""

    reasons: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def n_lines(self) -> int:
        """How many lines that is."""
        return sum(count for count, _ in self.reasons.values())

    def add(self, number: int, reason: str) -> None:
        """Count a line; beyond some reasons they are not told apart."""
        reason = " ".join(reason.split())[:_MOST_CHARACTERS]
        if reason not in self.reasons and len(self.reasons) >= _MOST_REASONS:
            reason = _OTHER_REASONS
        count, first = self.reasons.get(reason, (0, number))
        self.reasons[reason] = (count + 1, min(first, number))


@dataclass(frozen=True)
class Report:
    """What an import did.

    Attributes:
        format: Of the log.
        added: Records that are new.
        known: Records that were here already, also by an earlier line.
        foreign: How many of both are of another target than was asked for.
        torn: 1 if the last line was cut off.
        skipped: For each reason how many lines, and the number of the first.
    """

    format: str
    added: int
    known: int
    foreign: int
    torn: int
    skipped: Mapping[str, tuple[int, int]]
