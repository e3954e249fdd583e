"""Exported records are verified and ordered, the best first."""

from sqlalchemy.orm import Session

from records import bests, measure_records
from records.logs import exports
from tests.records import make


def test_the_best_goes_first_and_then_the_fastest(session: Session) -> None:
    """The winner of a final precedes records with lower latencies."""
    task_id = make.task(session)
    for trace, secs in (("a", 3e-3), ("b", 1e-3), ("c", 2e-3)):
        measure_records.add_record(session, make.timed(task_id, trace, secs))
    measure_records.add_record(session, make.failed(task_id, "d"))
    chosen = bests.top_records(session, task_id, 2)[1]
    bests.confirm(session, chosen.id, [1.5e-3])
    bests.choose_confirmed(session, task_id)

    def traces(top: int | None) -> list[str]:
        return [record.trace for record in exports.verified(session, task_id, top)]

    assert traces(None) == ['["c"]', '["b"]', '["a"]']
    assert traces(1) == ['["c"]']
    assert exports.count_unverified(session, [task_id]) == 1
    assert exports.count_verified(session, task_id) == 3


def test_tasks_are_those_of_one_engine_and_target(session: Session) -> None:
    """Tasks have their workload and the text of their target."""
    task_id, other = make.task(session), make.task(session, core_count=8)

    assert exports.tasks_of_engine(session, "relax", None) == [task_id, other]
    assert exports.tasks_of_engine(session, "relax", make.target(session, 8)) == [other]
    assert exports.tasks_of_engine(session, "relay", None) == []
    assert exports.exported_task(session, other).spec == '{"kind":"llvm"}'
    assert exports.count_verified(session, task_id) == 0
