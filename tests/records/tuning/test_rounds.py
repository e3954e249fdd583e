"""The history of a task follows its picks."""

import math

from sqlalchemy.orm import Session

from records import measure_records, picks
from records.tuning.rounds import RoundResult, history
from tests.records import make


def test_history_is_the_best_after_each_round(session: Session) -> None:
    """Failed and unverified trials never improve it; records without a pick come first."""
    task_id, idle, job_id = make.task(session, "a"), make.task(session, "b"), make.job(session)
    ids = [make.pick(session, job_id, task_id, 2).id for _ in range(4)]
    picks.finish_pick(session, ids[2], secs=1.5)
    for new in (
        make.failed(task_id, "a", pick_id=ids[0]),
        make.timed(task_id, "b", 0.1, pick_id=ids[0], verified=False),
        make.timed(task_id, "c", 3.0, pick_id=ids[1]),
        make.timed(task_id, "d", 2.0, pick_id=ids[1]),
        make.failed(task_id, "e", "run_timeout"),
    ):
        measure_records.add_record(session, new)

    assert history(session, [task_id, idle]) == {
        task_id: [
            RoundResult(None, 1, 1, math.inf, n_timeouts=1),
            RoundResult(ids[0], 2, 1, math.inf, run_secs=0.1),
            RoundResult(ids[1], 2, 0, 2.0, run_secs=5.0),
            RoundResult(
                ids[2], 0, 0, 2.0, secs=1.5
            ),  # completed without a record; ids[3] is still open
        ],
        idle: [],
    }
