"""Lists and sums read what they show, not whole tables."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from records import database, measure_records
from tests.api import make as api_make
from tests.records import make
from tuner.queries import metrics, record_browser
from tuner.queries.jobs import list_jobs
from tuner.queries.metrics import TrialCounter
from tuner.queries.record_browser import RecordFilter
from tuner.queries.records import read_records

_N_RECORDS = 20_000
_PAGE = 20
# A page of rows takes some thousands; a scan takes at least one for each record of the table.
_MAX_INSTRUCTIONS = 10_000
_FILL = f"""
INSERT INTO measure_record
    (task_id, trace, trace_hash, run_secs, latency, verified, worker, created)
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {_N_RECORDS})
SELECT iif(i <= 30, :old, :busy), 'trace', i, '[0.01]', 0.01, true, 'w', '2026-01-01' FROM n
"""


def instructions(session: Session, action: Callable[[], object]) -> int:
    """Return how many instructions of SQLite an action takes, in steps of 100."""
    driver: Any = session.connection().connection.driver_connection
    n_steps = 0

    def count() -> int:
        nonlocal n_steps
        n_steps += 1
        return 0

    driver.set_progress_handler(count, 100)
    action()
    driver.set_progress_handler(None, 0)
    return n_steps * 100


@pytest.fixture
def big(migrated_sqlite: str) -> Iterator[Session]:
    """A database with many records, of which the oldest 30 are of one task and two failed."""
    engine = database.open_database(migrated_sqlite)
    with database.sessions(engine).begin() as session:
        old, busy = make.task(session, "old"), make.task(session, "busy")
        for n in range(2):
            measure_records.add_record(session, make.failed(old, f"failed {n}"))
        session.execute(text(_FILL), {"old": old, "busy": busy})
    with database.sessions(engine, read_only=True)() as session:
        yield session
    engine.dispose()


@pytest.mark.parametrize(
    ("chosen", "n_rows"),
    [
        ({"failed": True}, 2),
        ({"workload": "old"}, _PAGE),
        ({"workload": "old", "failed": True}, 2),
        ({"task": 1, "before": 30}, _PAGE),
        ({"before": 5000}, _PAGE),
    ],
)
def test_a_list_of_few_among_many_reads_few(big: Session, chosen: Any, n_rows: int) -> None:
    """Rows at the old end of a large table are found by an index."""
    rows: list[Any] = []
    cost = instructions(big, lambda: rows.extend(read_records(big, limit=_PAGE, **chosen)))

    assert len(rows) == n_rows
    assert [row.record for row in rows] == sorted((row.record for row in rows), reverse=True)
    assert cost < _MAX_INSTRUCTIONS


def test_the_page_of_failures_reads_few(big: Session) -> None:
    """The dashboard finds the same failures on its first page."""
    pages: list[Any] = []
    chosen = RecordFilter(failed=True)
    cost = instructions(
        big, lambda: pages.append(record_browser.browse_records(big, chosen, _PAGE))
    )

    assert [(len(page.rows), page.next) for page in pages] == [(2, None)]
    assert cost < _MAX_INSTRUCTIONS


def test_trials_are_counted_once(migrated_sqlite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of picks that are done are remembered; an open pick and those after it are read."""
    monkeypatch.setattr(metrics, "_UNSETTLED_PICKS", 2)
    engine = database.open_database(migrated_sqlite)
    counter = TrialCounter()
    with database.sessions(engine).begin() as session:
        task_id, job_id = make.task(session), make.job(session)
        pick_ids = [make.pick(session, job_id, task_id, 1).id for _ in range(6)]
        for number, pick_id in enumerate(pick_ids):
            session.execute(
                text("UPDATE pick SET n_measured = 4, n_failed = 1, done = :done WHERE id = :id"),
                {"done": number != 3, "id": pick_id},
            )
        first = counter.count(session)["ok"]
        session.execute(
            text("UPDATE pick SET n_measured = 9, done = true WHERE id = :id"), {"id": pick_ids[3]}
        )
        # What is remembered is not read again.
        session.execute(text("UPDATE pick SET n_measured = 0 WHERE id = :id"), {"id": pick_ids[0]})
        second = counter.count(session)["ok"]
    engine.dispose()

    assert first == 6 * 3
    assert second == 5 * 3 + 8


def test_a_page_of_many_jobs_takes_as_many_statements_as_one_of_a_single_job(
    migrated_sqlite: str,
) -> None:
    """Networks and targets of all its jobs are read together."""
    engine = database.open_database(migrated_sqlite)
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *sent: statements.append(sent[2]))
    counts = []
    for n_jobs in (1, 20):
        with database.sessions(engine).begin() as session:
            for number in range(n_jobs):
                api_make.tuned(session, name=f"{n_jobs}-{number}", n_trials=1)
        statements.clear()
        with database.sessions(engine, read_only=True)() as session:
            shown = list_jobs(session)
        counts.append(len(statements))
    engine.dispose()

    assert len(shown) == 21
    assert counts[0] == counts[1]
