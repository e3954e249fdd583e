"""What records come to, kept up beside them: nobody counts a million records to draw a table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import case, func, update
from sqlalchemy.orm import Session

from records.models import ImportedRound, JobFailure, Pick
from records.statements import insert

TIMEOUTS = ("build_timeout", "run_timeout")


class Payer(NamedTuple):
    """A job, and the number of its pick."""

    job_id: int
    sequence: int


@dataclass
class Sums:
    """Records added up; see :class:`records.rounds.RoundResult`."""

    n_measured: int = 0
    n_failed: int = 0
    n_timeouts: int = 0
    best_secs: float | None = None
    run_secs: float = 0.0

    def add(self, record: Mapping[str, Any]) -> None:
        """Count a record, given by its columns."""
        kind, latency = record.get("error_kind"), record.get("latency")
        self.n_measured += 1
        self.n_failed += kind is not None
        self.n_timeouts += kind in TIMEOUTS
        self.run_secs += latency or 0.0
        if record.get("verified") and latency is not None:
            self.best_secs = latency if self.best_secs is None else min(self.best_secs, latency)


def add_to_pick(session: Session, pick_id: int, sums: Sums) -> Payer:
    """Add records to those of a pick; returns who pays for it."""
    grown = update(Pick).where(Pick.id == pick_id).values(_grown(Pick, sums))
    row = session.execute(grown.returning(Pick.job_id, Pick.sequence)).one()
    return Payer(*row)


def add_to_imported(session: Session, task_id: int, sums: Sums) -> None:
    """Add records that no pick paid for to those of their task."""
    row = insert(session, ImportedRound).values(task_id=task_id, **vars(sums))
    session.execute(
        row.on_conflict_do_update(
            index_elements=[ImportedRound.task_id], set_=_grown(ImportedRound, sums)
        )
    )


def add_failure(session: Session, job_id: int, error_kind: str, record_id: int) -> None:
    """Count a failed trial of a job."""
    row = insert(session, JobFailure).values(
        job_id=job_id, error_kind=error_kind, n_trials=1, record_id=record_id
    )
    session.execute(
        row.on_conflict_do_update(
            index_elements=[JobFailure.job_id, JobFailure.error_kind],
            set_={"n_trials": JobFailure.n_trials + 1, "record_id": record_id},
        )
    )


def _grown(model: type[Pick | ImportedRound], sums: Sums) -> dict[str, Any]:
    grown: dict[str, Any] = {
        "n_measured": model.n_measured + sums.n_measured,
        "n_failed": model.n_failed + sums.n_failed,
        "n_timeouts": model.n_timeouts + sums.n_timeouts,
        "run_secs": model.run_secs + sums.run_secs,
    }
    if sums.best_secs is not None:
        best = func.coalesce(model.best_secs, sums.best_secs)
        grown["best_secs"] = case((best < sums.best_secs, best), else_=sums.best_secs)
    return grown
