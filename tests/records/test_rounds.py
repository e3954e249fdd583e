"""The history of a task follows its picks."""

import math

import pytest
from sqlalchemy.orm import Session

from records import measure_records, picks
from records.errors import NoSuchRow
from records.rounds import RoundResult, history, of_pick
from tests.records import make


def test_history_is_the_best_after_each_round(session: Session) -> None:
    """Failures and unverified times never improve it, and cost time; free records come first."""
    task_id, idle, job_id = make.task(session, "a"), make.task(session, "b"), make.job(session)
    ids = [picks.add_pick(session, job_id, task_id, 2, {}).id for _ in range(4)]
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


def test_a_round_by_itself_has_its_own_best(session: Session) -> None:
    """What was better before is not its doing."""
    task_id, job_id = make.task(session), make.job(session)
    first, second, third = (picks.add_pick(session, job_id, task_id, 2, {}).id for _ in range(3))
    for new in (
        make.timed(task_id, "a", 1.0, pick_id=first),
        make.timed(task_id, "b", 3.0, pick_id=second),
        make.failed(task_id, "c", "build_timeout", pick_id=second),
    ):
        measure_records.add_record(session, new)
    picks.finish_pick(session, second, secs=9.0)

    assert of_pick(session, second) == RoundResult(second, 2, 1, 3.0, 9.0, 3.0, 1)
    assert of_pick(session, third) == RoundResult(third, 0, 0, math.inf)
    with pytest.raises(NoSuchRow, match="no pick 99"):
        of_pick(session, 99)
