"""Running totals per pick, task and job, so that views never scan ``measure_record``."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Update, bindparam, case, or_, select, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session

from records.models import ImportedRound, JobFailure, Pick
from records.storage.upsert import built_once, table

TIMEOUTS = ("build_timeout", "run_timeout")


class PickRef(NamedTuple):
    """A job and the sequence number of its pick."""

    job_id: int
    sequence: int


class FailureCount(NamedTuple):
    """Number of trials that failed with one error kind, and the record of the last of them."""

    n_trials: int
    record_id: int


@dataclass
class RecordTotals:
    """Totals over records; the fields are those of :class:`records.tuning.rounds.RoundResult`."""

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


_NAMES = tuple(field.name for field in fields(RecordTotals))


# Every function updates rows in the order of their ids, so that two writers never deadlock.
def add_to_picks(session: Session, totals: Mapping[int, RecordTotals]) -> dict[int, PickRef]:
    """Add totals to picks, by pick id; return the job and sequence number of each pick."""
    if not totals:
        return {}
    pick_ids = sorted(totals)
    rows = [
        {"of_pick": id_, **{f"more_{name}": more for name, more in vars(totals[id_]).items()}}
        for id_ in pick_ids
    ]
    session.connection().execute(_ADD_TO_PICK, rows)
    refs = session.execute(_PICK_REFS, {"pick_ids": pick_ids})
    return {id_: PickRef(job_id, sequence) for id_, job_id, sequence in refs}


def add_to_imported(session: Session, totals: Mapping[int, RecordTotals]) -> None:
    """Add totals of records that no pick paid for, by task id."""
    if not totals:
        return
    rows = [{"task_id": task_id, **vars(totals[task_id])} for task_id in sorted(totals)]
    session.execute(_upsert_imported(session), rows)


def add_failures(session: Session, failures: Mapping[tuple[int, str], FailureCount]) -> None:
    """Count failed trials, by job and error kind."""
    if not failures:
        return
    rows = [
        {"job_id": job_id, "error_kind": kind, **failures[job_id, kind]._asdict()}
        for job_id, kind in sorted(failures)
    ]
    session.execute(_upsert_failure(session), rows)


def _summed(
    model: type[Pick | ImportedRound], more: Mapping[str, ColumnElement[Any]]
) -> dict[str, Any]:
    values = {name: getattr(model, name) + more[name] for name in _NAMES if name != "best_secs"}
    best = more["best_secs"]
    is_better = or_(model.best_secs.is_(None), best < model.best_secs)
    return values | {"best_secs": case((is_better, best), else_=model.best_secs)}


def _add_to_pick() -> Update:
    columns = table(Pick).c
    more = {name: bindparam(f"more_{name}", type_=columns[name].type) for name in _NAMES}
    # A trial is progress: only the present attempt is left.
    values = _summed(Pick, more) | {"attempts": 1}
    return update(table(Pick)).where(columns.id == bindparam("of_pick")).values(values)


def _add_on_conflict(insert: postgresql.Insert) -> postgresql.Insert:
    values = _summed(ImportedRound, {name: insert.excluded[name] for name in _NAMES})
    return insert.on_conflict_do_update(index_elements=[ImportedRound.task_id], set_=values)


def _count_on_conflict(insert: postgresql.Insert) -> postgresql.Insert:
    values = {
        "n_trials": JobFailure.n_trials + insert.excluded.n_trials,
        "record_id": insert.excluded.record_id,
    }
    key = [JobFailure.job_id, JobFailure.error_kind]
    return insert.on_conflict_do_update(index_elements=key, set_=values)


_upsert_imported = built_once(ImportedRound, _add_on_conflict)
_upsert_failure = built_once(JobFailure, _count_on_conflict)
_ADD_TO_PICK = _add_to_pick()
_PICK = table(Pick).c
_PICK_REFS = select(_PICK.id, _PICK.job_id, _PICK.sequence).where(
    _PICK.id.in_(bindparam("pick_ids", expanding=True))
)
