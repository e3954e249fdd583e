"""Everything that the service acknowledged to its clients, for the checks at the end."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

_MAX_VIOLATIONS = 200


@dataclass
class AckedJob:
    """A job that the service accepted.

    Attributes:
        owner: Name of the token that submitted it.
        key: Idempotency-Key of the submission.
        form: Fields and files of the submission, to send it again.
        actions: Acknowledged changes in order, such as ``cancel``.
        is_bad: True if its model is damaged.
    """

    owner: str
    key: str
    form: dict[str, Any]
    actions: list[str] = field(default_factory=list)
    is_bad: bool = False


@dataclass
class Ledger:
    """Acknowledged jobs, builds and events, and all responses by request and status.

    Attributes:
        jobs: Accepted jobs by number.
        builds: Job of each accepted build, by the build's number.
        events: Kind and data of each event that a client received, by job and sequence.
        archives: Digests of the libraries that clients downloaded, by job.
        answers: Number of responses by request and status; a broken connection is a status too.
        latencies: Seconds of each response.
        violations: Descriptions of wrong behaviour of the service.
    """

    jobs: dict[int, AckedJob] = field(default_factory=dict)
    builds: dict[int, int] = field(default_factory=dict)
    events: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    archives: dict[int, set[str]] = field(default_factory=dict)
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def violate(self, text: str) -> None:
        """Note wrong behaviour of the service."""
        if len(self.violations) < _MAX_VIOLATIONS:
            self.violations.append(text)

    def by_status(self) -> dict[str, int]:
        """Return the number of responses by status."""
        totals: Counter[str] = Counter()
        for (_, status), n in self.answers.items():
            totals[status] += n
        return dict(sorted(totals.items()))
