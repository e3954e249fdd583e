"""Look-ups of records, which stay fast among millions of them."""

from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import sessionmaker

from records import database, measure_records
from tests.records import make
from tuner.queries import records as record_queries


def test_a_best_record_is_found_by_the_key_of_its_task(tmp_path: Path) -> None:
    """SQLite looks the task up by its key, although it has no statistics."""
    engine = database.open_database(f"sqlite:///{tmp_path}/records.db")
    sent: list[tuple[str, Any]] = []
    event.listen(engine, "before_cursor_execute", lambda *args: sent.append((args[2], args[3])))
    with sessionmaker(engine)() as session:
        for hashed in ("w0", "w1"):
            measure_records.add_record(session, make.timed(make.task(session, hashed), "a", 1.0))
        sent.clear()
        (best,) = record_queries.read_bests(session, workload="w0", target_id=1)
        sql, parameters = sent[0]
        rows = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", parameters)
        plan = [str(row[-1]) for row in rows]
        session.rollback()
    engine.dispose()

    assert (best.workload, best.latency_secs) == ("w0", 1.0)
    assert not [step for step in plan if step.startswith("SCAN")]
    assert any("workload_id=? AND target_id=?" in step for step in plan), plan


def test_records_name_their_variant_and_origin(tmp_path: Path) -> None:
    """Lists read the variant from the beginning of the trace, where no origin is stored."""
    engine = database.open_database(f"sqlite:///{tmp_path}/records.db")
    trace = '{"variant":"winograd-4x4","trace":[' + "0," * 100 + "0]}"
    with sessionmaker(engine)() as session:
        task = make.task(session, "w0")
        measure_records.add_record(session, make.timed(task, "a", 1.0)._replace(trace=trace))
        other = make.timed(task, "b", 2.0)._replace(origin="rules:direct")
        measure_records.add_record(session, other)
        (best,) = record_queries.read_bests(session)
        records = record_queries.read_records(session)
        session.rollback()
    engine.dispose()

    assert best.variant == "winograd-4x4"
    assert [record.variant for record in records] == ["", "winograd-4x4"]
    assert [record.origin for record in records] == ["rules:direct", "variants:winograd-4x4"]
