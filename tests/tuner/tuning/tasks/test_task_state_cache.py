"""Tests of the states of tasks that a coordinator keeps in memory."""

import pytest

from records import measure_records, picks
from tests.engines.toy_network import Workshop
from tests.records import make
from tuner.tuning.tasks.task_state_cache import RoundIds, TaskStateCache


@pytest.mark.parametrize("n_others", [0, 1])
@pytest.mark.parametrize("n_own", [0, 2])
def test_trials_of_others_are_found_beside_own(
    workshop: Workshop, n_own: int, n_others: int
) -> None:
    """Each trial counts once, and those of other processes count a second later at most."""
    now, prepared = [0.0], workshop.prepare()
    job_id, task_id = workshop.session(prepared, 40).job_id, prepared.tasks[0].task_id
    cache = TaskStateCache(workshop.sessions, lambda: now[0])
    cache.register_job(job_id, prepared.tasks)
    with workshop.sessions.begin() as session:
        new_pick = picks.NewPick(job_id, task_id, 4, {})
        (pick,) = picks.add_picks(session, [new_pick])
    cache.reserve(task_id)
    cache.round_started(pick)

    for number in range(n_own):
        record = make.timed(task_id, f"own {number}", 1.0, pick_id=pick.id)
        with workshop.sessions.begin() as session:
            (stored,) = measure_records.add_records(session, [record])
        cache.record_stored(RoundIds.of(pick), record, stored)
    for number in range(n_others):
        with workshop.sessions.begin() as session:
            measure_records.add_record(session, make.timed(task_id, f"other {number}", 0.5))
    now[0] += 1.0
    (latency, *_), n_trials = cache.snapshot(job_id).latencies, cache.snapshot(job_id).n_trials

    assert n_trials == n_own + n_others
    assert latency == (0.5 if n_others else 1.0 if n_own else float("inf"))
