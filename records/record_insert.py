"""Storing spent trials, each once, with all that follows from them."""

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import bindparam, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningInsert

from records import aggregates, bests, events
from records.models import MeasureFeature, MeasureRecord, Task
from records.upsert import built_once, table

# Columns of a record, and its features, by name; once it is stored, its id too.
Row = dict[str, Any]


class Stored(NamedTuple):
    """A record that is new; ``best`` is whether it is now the best of its task."""

    record_id: int
    latency: float | None
    best: bool


def store(session: Session, rows: Sequence[Row]) -> list[Stored | None]:
    """Store rows as :func:`records.measure_records.add_records` describes."""
    session.flush()
    found = _insert(session, rows)
    trials = [trial for trial in found if trial is not None]
    payers = _count(session, trials)
    _add_features(session, trials)
    bests_now = bests.offer(session, _offers(trials))
    _tell(session, payers, trials, bests_now)
    return [
        None if trial is None else Stored(trial["id"], trial["latency"], trial["id"] in bests_now)
        for trial in found
    ]


def _insert(session: Session, rows: Sequence[Row]) -> list[Row | None]:
    """Return each row that is new with its id."""
    if len(rows) > 1:
        # Writers of the same two traces in different orders would wait for each other.
        session.execute(_LOCKED_TASKS, {"task_ids": list({row["task_id"] for row in rows})})
    columns = [{name: row[name] for name in row if name != "features"} for row in rows]
    new = session.execute(_add(session), columns) if rows else ()
    ids = {tuple(row[:2]): row[2] for row in new}
    # The first of equal ones takes the id: the others are known.
    found = [ids.pop((row["task_id"], row["trace_hash"]), None) for row in rows]
    return [
        None if record_id is None else row | {"id": record_id}
        for row, record_id in zip(rows, found, strict=True)
    ]


def _add_features(session: Session, trials: Sequence[Row]) -> None:
    seen = [
        {"record_id": trial["id"], "features": trial["features"]}
        for trial in trials
        if trial["features"] is not None
    ]
    if seen:
        session.execute(_ADD_FEATURES, seen)


def _count(session: Session, trials: Sequence[Row]) -> dict[int, aggregates.Payer]:
    """Add up records, and return who pays for each pick."""
    paid: dict[int, aggregates.Sums] = defaultdict(aggregates.Sums)
    imported: dict[int, aggregates.Sums] = defaultdict(aggregates.Sums)
    for trial in trials:
        is_paid = trial["pick_id"] is not None
        (paid[trial["pick_id"]] if is_paid else imported[trial["task_id"]]).add(trial)
    aggregates.add_to_imported(session, imported)
    payers = aggregates.add_to_picks(session, paid)
    failures: dict[tuple[int, str], aggregates.Failures] = {}
    for trial in trials:
        if trial["error_kind"] is not None and trial["pick_id"] is not None:
            way = (payers[trial["pick_id"]].job_id, trial["error_kind"])
            n_before = failures[way].n_trials if way in failures else 0
            failures[way] = aggregates.Failures(n_before + 1, trial["id"])
    aggregates.add_failures(session, failures)
    return payers


def _offers(trials: Sequence[Row]) -> list[bests.Offer]:
    fastest: dict[int, bests.Offer] = {}
    for trial in trials:
        if trial["verified"] and trial["latency"] is not None:
            offer = bests.Offer(trial["task_id"], trial["id"], trial["latency"])
            before = fastest.get(offer.task_id)
            if before is None or offer.latency < before.latency:
                fastest[offer.task_id] = offer
    return list(fastest.values())


def _tell(
    session: Session,
    payers: Mapping[int, aggregates.Payer],
    trials: Sequence[Row],
    bests_now: Container[int],
) -> None:
    """Tell those who watch the jobs of their records."""
    told = []
    for trial in trials:
        payer = payers.get(trial["pick_id"])
        if payer is not None:
            data = {
                "pick": payer.sequence,
                "task_id": trial["task_id"],
                "record": trial["id"],
                "latency_secs": trial["latency"],
                "error_kind": trial["error_kind"],
                "best": trial["id"] in bests_now,
            }
            told.append(events.NewEvent(payer.job_id, "trial", data))
    events.add_events(session, told)


def _unless_known(row: postgresql.Insert) -> ReturningInsert[int, str, int]:
    names = table(MeasureRecord).c
    return row.on_conflict_do_nothing().returning(names.task_id, names.trace_hash, names.id)


_add = built_once(MeasureRecord, _unless_known)
_ADD_FEATURES = table(MeasureFeature).insert()
_LOCKED_TASKS = (
    select(Task.id)
    .where(Task.id.in_(bindparam("task_ids", expanding=True)))
    .order_by(Task.id)
    .with_for_update(key_share=True)
)
