"""Records of other targets are read by workload, in few queries."""

from sqlalchemy.orm import Session

from records import bests, measure_records, networks
from records.logs import other_targets
from records.models import MeasureRecord
from tests.records import make


def add(session: Session, new: measure_records.NewRecord) -> MeasureRecord:
    """Store a new trial."""
    record = measure_records.add_record(session, new)
    assert record is not None
    return record


def test_bests_of_targets_are_narrowed_by_workload(session: Session) -> None:
    """Only best records of the given targets and workloads are returned."""
    there, other = make.task(session, core_count=64), make.task(session, "w1", core_count=64)
    for task_id in (there, other, make.task(session)):
        add(session, make.timed(task_id, "a", 2.0))
    target_id = make.target(session, 64)
    workloads = other_targets.workload_ids(session, [there, other])

    both = other_targets.bests_of_targets(session, [target_id])
    one = other_targets.bests_of_targets(session, [target_id], [workloads[other]])

    assert [(best.workload, best.task_id, best.latency) for best in both] == [
        ("w0", there, 2.0),
        ("w1", other, 2.0),
    ]
    assert one == both[1:]
    assert other_targets.tasks_of_target(session, target_id, workloads.values()) == {
        workload_id: task_id for task_id, workload_id in workloads.items()
    }


def test_the_best_is_ranked_before_the_fastest(session: Session) -> None:
    """The winner of a final precedes the others, which are ordered by latency, then age."""
    task_id = make.task(session)
    winner = add(session, make.timed(task_id, "winner", 3.0, features=b"f"))
    for trace, secs in (("b", 2.0), ("c", 2.0), ("d", 2.5)):
        add(session, make.timed(task_id, trace, secs))
    add(session, make.timed(task_id, "unverified", 0.1, verified=False))
    bests.confirm(session, winner.id, [1.0])
    bests.choose_confirmed(session, task_id)

    ranked = other_targets.ranked(session, task_id, 3)

    assert [record.trace_hash for record in ranked] == ["winner", "b", "c"]
    assert (ranked[0].latency, ranked[0].features, ranked[1].features) == (3.0, b"f", None)
    assert other_targets.ranked(session, task_id, 1) == ranked[:1]


def test_traces_that_failed_elsewhere_are_skipped(session: Session) -> None:
    """Even a best record is skipped; a trace that was verified here is not."""
    there, here = make.task(session, core_count=64), make.task(session)
    for trace, secs in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        add(session, make.timed(there, trace, secs))
    add(session, make.failed(here, "a", "wrong_result"))
    add(session, make.timed(here, "b", 9.0))

    ranked = other_targets.ranked(session, there, 2, here)

    assert [record.trace_hash for record in ranked] == ["b", "c"]
    assert other_targets.known_traces(session, here, {"b", "c"}) == {"b"}


def test_weights_add_up_over_networks_and_not_over_targets(session: Session) -> None:
    """A network extracted for two targets counts once, and a union does not count."""
    two, many = make.target(session, 2), make.target(session, 64)
    first, second = make.network(session, "n0"), make.network(session, "n1")
    shared = (make.workload("w0"), 2)
    networks.record_extraction(session, first, two, [shared, (make.workload("w1"), 1)], 3)
    networks.record_extraction(session, first, many, [shared], 2)
    networks.record_extraction(session, second, two, [shared], 2)
    networks.ensure_union(session, "u", "both", two, [first, second])
    w0, w1 = (
        other_targets.workload_ids(session, [make.task(session, name)]).popitem()[1]
        for name in ("w0", "w1")
    )

    assert other_targets.workload_weights(session, [two, many]) == {w0: 4, w1: 1}
    assert other_targets.workload_weights(session, [many]) == {w0: 2}


def test_a_setting_is_that_of_the_newest_job_that_has_it(session: Session) -> None:
    """The first target takes precedence over the second, regardless of age."""
    here, there = make.target(session, 2), make.target(session, 64)
    for seed, target_id, settings in (
        (0, here, {"evaluator": 1}),
        (1, here, {"evaluator": 2}),
        (2, here, {}),
        (3, there, {"evaluator": 3, "other": 4}),
    ):
        make.job(session, seed=seed, target_id=target_id, settings=settings)

    assert other_targets.newest_setting(session, [here, there], "evaluator") == 2
    assert other_targets.newest_setting(session, [here, there], "other") == 4
    assert other_targets.newest_setting(session, [here], "other") is None
