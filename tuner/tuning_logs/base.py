"""Lines of logs of other tools, and the results of their import."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tuner.engines.base import ErrorKind

# Bounds the reasons that a log with arbitrary lines can produce.
_MAX_REASONS = 50
_OTHER_REASONS = "other reasons"
_MAX_CHARS = 300
# TVM's tools write 1e10, about 300 years, for a failed trial.
_MAX_SECS = 1e10


class BadLine(Exception):  # noqa: N818  the name states the condition
    """A line cannot be read or used; the message gives the reason."""


@dataclass(frozen=True)
class Entry:
    """One measurement in the notation of the log, which only the engine can interpret.

    Attributes:
        workload: Key of the workload within the log.
        target: Target of the measurement.
        trace: Schedule of the workload.
        run_secs: Samples, seconds; None if the trial failed.
        error_kind: Kind of the failure; None if the trial ran.
        error_text: Message of the log on the failure.
        created: Time of the measurement, if the log has it.
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
    """Lines that were left out: for each reason their count, and the number of the first."""

    reasons: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def n_lines(self) -> int:
        """Number of lines left out."""
        return sum(count for count, _ in self.reasons.values())

    def add(self, number: int, reason: str) -> None:
        """Count a line; reasons beyond the first 50 are counted together."""
        reason = " ".join(reason.split())[:_MAX_CHARS]
        if reason not in self.reasons and len(self.reasons) >= _MAX_REASONS:
            reason = _OTHER_REASONS
        count, first = self.reasons.get(reason, (0, number))
        self.reasons[reason] = (count + 1, min(first, number))


@dataclass(frozen=True)
class LogImportReport:
    """The result of an import.

    Attributes:
        added: Number of records added.
        known: Number of records that the database already had, also from an earlier line.
        foreign: Number of records, added or known, for a target other than the requested one.
        torn: 1 if the last line was cut off, else 0.
        skipped: For each reason the number of lines, and the number of the first.
    """

    format: str
    added: int
    known: int
    foreign: int
    torn: int
    skipped: Mapping[str, tuple[int, int]]


def parse_line(text: str) -> Any:
    """Parse a line.

    Raises:
        BadLine: If it is not JSON.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise BadLine("it is nested too deeply") from error
    except ValueError as error:
        raise BadLine("it is not JSON") from error


def samples_of(values: Any) -> tuple[float, ...]:
    """Return samples, seconds.

    Raises:
        BadLine: If the list is empty, or a value is not a duration.
    """
    if not isinstance(values, list) or not values:
        raise BadLine("it has no samples")
    for value in values:
        if type(value) not in (int, float) or not 0 <= value <= _MAX_SECS:
            raise BadLine("a sample is not a duration")
    return tuple(float(value) for value in values)


def canonical_json(value: Any) -> str:
    """Return canonical JSON, equal for equal values."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
