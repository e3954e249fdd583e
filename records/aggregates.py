"""What records come to, kept up beside them: nobody counts a million records to draw a table."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Update, bindparam, case, or_, select, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session

from records.models import ImportedRound, JobFailure, Pick
from records.upsert import built_once, table

TIMEOUTS = ("build_timeout", "run_timeout")


class Payer(NamedTuple):
    """A job, and the number of its pick."""

    job_id: int
    sequence: int


class Failures(NamedTuple):
    """How many trials failed in one way, and the record of the last of them."""

    n_trials: int
    record_id: int


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


_NAMES = tuple(field.name for field in fields(Sums))


# Rows are always changed in the order of their ids, so that two writers at once cannot each wait
# for what the other has changed.
def add_to_picks(session: Session, sums: Mapping[int, Sums]) -> dict[int, Payer]:
    """Add records to those of picks, by their ids; returns who pays for each."""
    if not sums:
        return {}
    rows = [
        {"of_pick": pick_id, **{f"more_{name}": getattr(sums[pick_id], name) for name in _NAMES}}
        for pick_id in sorted(sums)
    ]
    session.execute(_GROW_PICK, rows)
    return {row[0]: Payer(*row[1:]) for row in session.execute(_PAYERS, {"pick_ids": list(sums)})}


def add_to_imported(session: Session, sums: Mapping[int, Sums]) -> None:
    """Add records that no pick paid for to those of tasks, by their ids."""
    if not sums:
        return
    rows = [{"task_id": task_id, **vars(sums[task_id])} for task_id in sorted(sums)]
    session.execute(_import(session), rows)


def add_failures(session: Session, failures: Mapping[tuple[int, str], Failures]) -> None:
    """Count failed trials, by job and error kind."""
    if not failures:
        return
    rows = [
        {"job_id": job_id, "error_kind": kind, **failures[job_id, kind]._asdict()}
        for job_id, kind in sorted(failures)
    ]
    session.execute(_fail(session), rows)


def _grown(
    model: type[Pick | ImportedRound], more: Mapping[str, ColumnElement[Any]]
) -> dict[str, Any]:
    grown = {name: getattr(model, name) + more[name] for name in _NAMES if name != "best_secs"}
    best = more["best_secs"]
    is_better = or_(model.best_secs.is_(None), best < model.best_secs)
    return grown | {"best_secs": case((is_better, best), else_=model.best_secs)}


def _grow_pick() -> Update:
    columns = table(Pick).c
    more = {name: bindparam(f"more_{name}", type_=columns[name].type) for name in _NAMES}
    return update(table(Pick)).where(columns.id == bindparam("of_pick")).values(_grown(Pick, more))


def _grow_imported(row: postgresql.Insert) -> postgresql.Insert:
    grown = _grown(ImportedRound, {name: row.excluded[name] for name in _NAMES})
    return row.on_conflict_do_update(index_elements=[ImportedRound.task_id], set_=grown)


def _grow_failure(row: postgresql.Insert) -> postgresql.Insert:
    grown = {
        "n_trials": JobFailure.n_trials + row.excluded.n_trials,
        "record_id": row.excluded.record_id,
    }
    key = [JobFailure.job_id, JobFailure.error_kind]
    return row.on_conflict_do_update(index_elements=key, set_=grown)


_import = built_once(ImportedRound, _grow_imported)
_fail = built_once(JobFailure, _grow_failure)
_GROW_PICK = _grow_pick()
_PAYERS = select(Pick.id, Pick.job_id, Pick.sequence).where(
    Pick.id.in_(bindparam("pick_ids", expanding=True))
)
