"""Tests that latencies in logs of other tools are measured here before they are used."""

import json

from sqlalchemy import select

from records.logs import imported, other_targets
from records.models import BestRecord
from tests.engines import toy
from tests.engines.toy_network import Workshop
from tests.engines.upgrades import age
from tests.tuner.jobs.test_stale_records import stale_of
from tests.tuner.tuning.rounds.test_remeasure import verify

OTHER = '{"kind":"toy","mcpu":"other"}'


def log(workshop: Workshop, claims: dict[str, float], spec: str = toy.SPEC) -> None:
    """Store the claims of a log about a task: latency, seconds, by program number."""
    prepared = workshop.prepare()
    task = next(task for task in prepared.tasks if task.name == "heavy[1]")
    with workshop.sessions.begin() as session:
        workload_id = other_targets.workload_ids(session, [task.task_id])[task.task_id]
        target_id = imported.target_of(session, spec, "Ansor").id
        imported.add(
            session, workload_id, target_id, None, [_claim(*claim) for claim in claims.items()]
        )


def _claim(program: str, secs: float) -> imported.LoggedTrial:
    trace = json.dumps({"task": "heavy", "program": int(program)})
    return imported.LoggedTrial(trace, f"heavy-{program}", (secs,), None, "", None)


def bests(workshop: Workshop) -> list[int]:
    """Return the ids of best records."""
    with workshop.sessions() as session:
        return list(session.scalars(select(BestRecord.record_id).order_by(BestRecord.record_id)))


def test_a_claim_is_measured_and_then_it_is_the_best(workshop: Workshop) -> None:
    """The best record has the latency of this machine, and the claim is not measured again."""
    log(workshop, {"1": 2e-6, "2": 1e-6})
    before = bests(workshop)

    first = verify(workshop)
    again = verify(workshop)

    (row,) = first.rows
    assert before == []
    assert (row.old_latency, row.foreign, row.best) == (1e-6, True, True)
    assert row.latency is not None
    assert row.latency > 4e-3
    assert bests(workshop) == [row.record]
    assert again.rows == ()


def test_a_claim_slower_than_the_best_record_is_not_measured(workshop: Workshop) -> None:
    """A claim is measured only if it is faster than the best record of its task."""
    workshop.tune(workshop.prepare(), 24, trials_per_round=6)
    log(workshop, {"398": 1.0})
    slow = verify(workshop)
    log(workshop, {"399": 1e-9})
    fast = verify(workshop)

    assert slow.rows == ()
    assert [row.old_latency for row in fast.rows] == [1e-9]


def test_claims_of_another_target_are_measured_on_request_only(workshop: Workshop) -> None:
    """Records of another target are measured on request, if it is of the same kind."""
    log(workshop, {"1": 1e-6}, OTHER)
    log(workshop, {"2": 1e-7}, '{"kind":"other"}')

    by_default = verify(workshop)
    on_request = verify(workshop, foreign=True)

    assert by_default.rows == ()
    assert [(row.old_latency, row.foreign) for row in on_request.rows] == [(1e-6, True)]
    assert on_request.rows[0].differs["target"] == (OTHER, toy.SPEC)


def test_a_build_lists_claims_and_uses_none(workshop: Workshop) -> None:
    """A build lists claims like records of other versions, and uses none."""
    log(workshop, {"1": 1e-6})

    (stale,) = stale_of(workshop, workshop.prepare())

    assert (stale.name, stale.device) == ("heavy[1]", "unnamed, by a log of Ansor")
    assert stale.differs["log"] == ("Ansor", None)


def test_a_claim_waits_behind_records_of_this_device(workshop: Workshop) -> None:
    """After an upgrade, records of this device are measured first, then claims."""
    workshop.tune(workshop.prepare(), 24, trials_per_round=6)
    age(workshop.sessions, tvm="1")
    log(workshop, {"398": 1e-9})

    first = {row.name: row for row in verify(workshop).rows}
    second = verify(workshop).rows

    assert not first["heavy[1]"].foreign
    assert [(row.old_latency, row.foreign) for row in second] == [(1e-9, True)]
    assert verify(workshop).rows == ()


def test_a_claim_that_fails_does_not_hide_records_of_another_device(workshop: Workshop) -> None:
    """The fastest claim is measured first, and only once."""
    workshop.tune(workshop.prepare(), 24, trials_per_round=6)
    age(workshop.sessions, name="another machine")
    log(workshop, {"106": 0.0})  # it breaks

    first = {row.name: row for row in verify(workshop).rows}
    second = {row.name: row for row in verify(workshop).rows}

    assert first["heavy[1]"].error_kind == "run_error"
    assert second["heavy[1]"].error_kind is None
    assert second["heavy[1]"].differs["name"][0] == "another machine"
