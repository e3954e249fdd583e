"""Measure records: storing spent trials, each once, and reading them back."""

import math
import statistics
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import bindparam, func, or_, select
from sqlalchemy.orm import Session

from records import bests, events, sums
from records.models import ImportedRound, MeasureFeature, MeasureRecord, Pick, Task, now
from records.statements import insert, table
from records.texts import storable


@dataclass(frozen=True, kw_only=True)
class NewRecord:
    """A spent trial: either ``run_secs`` or ``error_kind`` is given, never both.

    Attributes:
        task_id: The task the trial was spent on.
        trace: The replayable decisions, JSON text.
        trace_hash: Names the trace within its task.
        worker: Who measured it.
        run_secs: Samples, seconds, at least one, finite and not negative.
        error_kind: One of ``models.ERROR_KINDS``.
        error_text: What the failed step said.
        pick_id: The pick that paid for it; None if it came from elsewhere.
        module_hash: Structural hash of the scheduled module.
        verified: The output was compared with a reference, and agrees.
        max_error: Largest difference from the reference; NaN counts as infinity.
        features: What a cost model sees of it.
    """

    task_id: int
    trace: str
    trace_hash: str
    worker: str
    run_secs: Sequence[float] | None = None
    error_kind: str | None = None
    error_text: str | None = None
    pick_id: int | None = None
    module_hash: str | None = None
    verified: bool = False
    max_error: float | None = None
    features: bytes | None = None


class Measured(NamedTuple):
    """What proposing needs of a record; ``latency`` in seconds, None if it failed."""

    trace: str
    trace_hash: str
    module_hash: str | None
    latency: float | None
    error_kind: str | None


class Counts(NamedTuple):
    """Trials spent on a task, and how many of them failed."""

    n_trials: int
    n_failed: int


class Stored(NamedTuple):
    """A record that is new; ``best`` is whether it is now the best of its task."""

    record_id: int
    latency: float | None
    best: bool


def add_record(session: Session, new: NewRecord) -> MeasureRecord | None:
    """Store a spent trial: a group of one, see :func:`add_records`.

    Returns:
        The record, or None if the task already has that trace.
    """
    (stored,) = add_records(session, [new])
    return None if stored is None else session.get_one(MeasureRecord, stored.record_id)


def add_records(session: Session, new: Sequence[NewRecord]) -> list[Stored | None]:
    """Store spent trials, of any tasks and jobs, and make the fastest verified ones the best.

    Of each task the fastest of the group, of equals the first, becomes the best record if it is
    faster than the one before. Who watches a job is told of its trials in the order given.

    Returns:
        What became of each; None if its task already has that trace, be it from earlier in the
        group: it counts once.

    Raises:
        ValueError: If ``run_secs`` holds no sample, or one that is no duration.
        sqlalchemy.exc.IntegrityError: If one has both samples and an error, or neither,
            or an unknown error kind, task or pick. Roll the transaction back then.
    """
    session.flush()
    trials = _insert(session, new)
    stored = [trial for trial in trials if trial is not None]
    payers = _count(session, stored)
    features = [
        {"record_id": trial["id"], "features": record.features}
        for record, trial in zip(new, trials, strict=True)
        if trial is not None and record.features is not None
    ]
    if features:
        session.execute(insert(session, table(MeasureFeature)), features)
    bests_now = bests.offer(session, _offers(stored))
    _tell(session, payers, stored, bests_now)
    return [
        None if trial is None else Stored(trial["id"], trial["latency"], trial["id"] in bests_now)
        for trial in trials
    ]


def records_of_pick(session: Session, pick_id: int) -> list[MeasureRecord]:
    """Return the records that a pick paid for, the oldest first."""
    wanted = select(MeasureRecord).where(MeasureRecord.pick_id == pick_id)
    return list(session.scalars(wanted.order_by(MeasureRecord.id)))


def measured(session: Session, task_id: int, before_pick_id: int | None) -> list[Measured]:
    """Return what a task had measured before a pick, the oldest first.

    Args:
        session: The transaction.
        task_id: The task.
        before_pick_id: Only records of earlier picks and records of no pick, so that a
            resumed round proposes what it would have proposed; None for all.
    """
    wanted = select(
        MeasureRecord.trace,
        MeasureRecord.trace_hash,
        MeasureRecord.module_hash,
        MeasureRecord.latency,
        MeasureRecord.error_kind,
    ).where(MeasureRecord.task_id == task_id)
    if before_pick_id is not None:
        earlier = MeasureRecord.pick_id < before_pick_id
        wanted = wanted.where(or_(MeasureRecord.pick_id.is_(None), earlier))
    return [Measured(*row) for row in session.execute(wanted.order_by(MeasureRecord.id))]


def count_by_task(session: Session, task_ids: Iterable[int]) -> dict[int, Counts]:
    """Count the trials of each task; zeros for a task without any."""
    wanted = list(task_ids)
    counts = dict.fromkeys(wanted, Counts(0, 0))
    for model in (Pick, ImportedRound):
        rows = session.execute(
            select(model.task_id, func.sum(model.n_measured), func.sum(model.n_failed))
            .where(model.task_id.in_(wanted))
            .group_by(model.task_id)
        )
        for task_id, n_trials, n_failed in rows:
            before = counts[task_id]
            counts[task_id] = Counts(before.n_trials + n_trials, before.n_failed + n_failed)
    return counts


def own_trials(session: Session, job_id: int) -> dict[int, int]:
    """Count the trials that the picks of a job paid for, by task id."""
    rows = session.execute(
        select(Pick.task_id, func.sum(Pick.n_measured))
        .where(Pick.job_id == job_id, Pick.n_measured > 0)
        .group_by(Pick.task_id)
    )
    return {task_id: n for task_id, n in rows}  # noqa: C416  rows are not pairs to mypy


def _insert(session: Session, new: Sequence[NewRecord]) -> list[dict[str, Any] | None]:
    """Return the columns of each record that is new, its id with them."""
    at = now()
    rows = [_columns(record) | {"created": at} for record in new]
    if len(rows) > 1:
        # Writers of the same two traces in different orders would wait for each other.
        session.execute(_LOCKED_TASKS, {"task_ids": list({row["task_id"] for row in rows})})
    records = table(MeasureRecord)
    inserted = (
        insert(session, records)
        .on_conflict_do_nothing()
        .returning(records.c.task_id, records.c.trace_hash, records.c.id)
    )
    ids = {tuple(row[:2]): row[2] for row in session.execute(inserted, rows)} if rows else {}
    # The first of equal ones takes the id: the others are known.
    found = [ids.pop((row["task_id"], row["trace_hash"]), None) for row in rows]
    return [
        None if record_id is None else row | {"id": record_id}
        for row, record_id in zip(rows, found, strict=True)
    ]


def _count(session: Session, trials: Sequence[Mapping[str, Any]]) -> dict[int, sums.Payer]:
    """Add up records, and return who pays for each pick."""
    paid: dict[int, sums.Sums] = defaultdict(sums.Sums)
    imported: dict[int, sums.Sums] = defaultdict(sums.Sums)
    for trial in trials:
        is_paid = trial["pick_id"] is not None
        (paid[trial["pick_id"]] if is_paid else imported[trial["task_id"]]).add(trial)
    sums.add_to_imported(session, imported)
    payers = sums.add_to_picks(session, paid)
    failures: dict[tuple[int, str], sums.Failures] = {}
    for trial in trials:
        if trial["error_kind"] is not None and trial["pick_id"] is not None:
            way = (payers[trial["pick_id"]].job_id, trial["error_kind"])
            n_before = failures[way].n_trials if way in failures else 0
            failures[way] = sums.Failures(n_before + 1, trial["id"])
    sums.add_failures(session, failures)
    return payers


def _offers(trials: Sequence[Mapping[str, Any]]) -> list[bests.Offer]:
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
    payers: Mapping[int, sums.Payer],
    trials: Sequence[Mapping[str, Any]],
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


def _columns(new: NewRecord) -> dict[str, Any]:
    values = vars(new) | {"latency": None}
    del values["features"]
    if new.run_secs is not None:
        values["run_secs"] = _durations(new.run_secs)
        values["latency"] = statistics.median(values["run_secs"])
    if new.error_text is not None:
        values["error_text"] = storable(new.error_text)
    if new.max_error is not None and math.isnan(new.max_error):
        values["max_error"] = math.inf
    return values


def _durations(samples: Sequence[float]) -> list[float]:
    secs = [float(sample) for sample in samples]
    if not secs or not all(math.isfinite(sample) and sample >= 0.0 for sample in secs):
        raise ValueError(f"run times must be finite seconds, at least one, got {secs}")
    return secs


_LOCKED_TASKS = (
    select(Task.id)
    .where(Task.id.in_(bindparam("task_ids", expanding=True)))
    .order_by(Task.id)
    .with_for_update(key_share=True)
)
