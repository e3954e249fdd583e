"""Records from logs of other tools are kept apart from measurements."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from records import measure_records
from records.logs import imported, other_targets
from records.models import BestRecord, MeasureRecord
from records.tasks import ensure_task, ensure_workload
from tests.records import make

SPEC = '{"kind":"llvm"}'


def ran(trace: str, secs: float = 1e-3, **changed: Any) -> imported.LoggedTrial:
    """Return a successful measurement."""
    fields: dict[str, Any] = {
        "trace": trace,
        "module_hash": "m",
        "run_secs": (secs, secs),
        "error_kind": None,
        "error_text": "",
        "created": datetime(2020, 1, 1, tzinfo=UTC),
    }
    return imported.LoggedTrial(**(fields | changed))


def test_records_of_logs_are_never_the_best(session: Session) -> None:
    """They belong to an unnamed device, are not verified, and keep the date of the log."""
    workload_id = ensure_workload(session, make.workload()).id
    target = imported.target_of(session, SPEC, "Ansor")
    failed = ran("c", run_secs=None, error_kind="run_error", error_text="no\x00")

    n_added = imported.add(session, workload_id, target.id, None, [ran("a"), ran("b"), failed])

    rows = session.scalars(select(MeasureRecord).order_by(MeasureRecord.id)).all()
    assert n_added == 3
    assert [row.verified for row in rows] == [False] * 3
    assert {row.worker for row in rows} == {imported.WORKER}
    assert rows[0].created == datetime(2020, 1, 1, tzinfo=UTC)
    assert session.scalars(select(BestRecord)).all() == []
    assert imported.is_logged(target)


def test_known_records_are_not_added(session: Session) -> None:
    """Duplicates of an earlier log, of the same log, or of this machine are skipped."""
    here = make.target(session)
    workload_id = ensure_workload(session, make.workload()).id
    task_id = ensure_task(session, workload_id, here).id
    own = make.timed(task_id, measure_records.trace_hash("a"), 1e-3)
    measure_records.add_record(session, own)
    target_id = imported.target_of(session, SPEC, "Ansor").id

    first = imported.add(session, workload_id, target_id, here, [ran("a"), ran("b"), ran("b")])
    again = imported.add(session, workload_id, target_id, here, [ran("a"), ran("b")])

    assert (first, again) == (1, 0)


def test_a_device_that_never_measured_has_no_target(session: Session) -> None:
    """Looking a target up does not create it."""
    assert imported.find_target(session, SPEC, make.CPU) is None

    target_id = make.target(session)

    assert imported.find_target(session, SPEC, make.CPU) == target_id
    assert imported.find_target(session, SPEC, {"name": "x"}) is None


def test_the_fastest_of_a_log_needs_no_verification(session: Session) -> None:
    """Ties go to the oldest, and failed trials are skipped."""
    target_id = imported.target_of(session, SPEC, "Ansor").id
    workload_id = ensure_workload(session, make.workload()).id
    failed = ran("z", run_secs=None, error_kind="run_error")
    records = [failed, ran("a", 2e-3), ran("b", 1e-3), ran("c", 1e-3)]
    imported.add(session, workload_id, target_id, None, records)

    (best,) = other_targets.fastest_of_targets(session, [target_id])
    replays = other_targets.ranked(session, best.task_id, 2, verified=False)

    assert (best.workload, best.latency) == ("w0", 1e-3)
    assert [replay.trace for replay in replays] == ["b", "c"]
    assert other_targets.fastest_of_targets(session, [target_id], [workload_id + 1]) == []
    assert other_targets.ranked(session, best.task_id, 2) == []
