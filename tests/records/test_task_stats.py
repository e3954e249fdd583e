"""Standings say what adding up every pick would."""

from sqlalchemy.orm import Session

from records import measure_records, picks, task_stats
from records.task_stats import TaskTrialCounts
from tests.records import make


def test_a_standing_has_what_every_job_and_import_did(session: Session) -> None:
    """Trials of all, the last round that is over or has trials, and the job's own last pick."""
    mine, other = make.job(session), make.job(session, seed=1)
    task_id, idle = make.task(session), make.task(session, "idle")
    first = make.pick(session, mine, task_id, 2).id
    second = make.pick(session, other, task_id, 2).id
    third = make.pick(session, mine, task_id, 2).id
    measure_records.add_record(session, make.timed(task_id, "a", 1.0, pick_id=first))
    measure_records.add_record(session, make.failed(task_id, "b", pick_id=second))
    measure_records.add_record(session, make.timed(task_id, "c", 1.0))

    assert task_stats.of_tasks(session, mine, [task_id, idle]) == {
        task_id: TaskTrialCounts(3, 1, newest=second, own=third),
        idle: TaskTrialCounts(),
    }
    assert task_stats.of_tasks(session, other, [task_id])[task_id].own == second
    picks.finish_pick(session, third)
    assert task_stats.of_tasks(session, mine, [task_id])[task_id].newest == third


def test_trials_of_a_job_are_those_after_its_last_round_and_since(session: Session) -> None:
    """Whether or not its rounds say what they came to, as those of an older tuner do not."""
    told, silent, idle = (make.job(session, seed=seed) for seed in range(3))
    task_id = make.task(session)
    for job_id in (told, silent):
        for round_ in range(3):
            pick_id = make.pick(session, job_id, task_id, 2).id
            new = make.timed(task_id, f"{job_id}-{round_}", 1.0, pick_id=pick_id)
            measure_records.add_record(session, new)
            if job_id == told and round_ < 2:
                ending = picks.RoundEnd(pick_id, job_id, 2.0, 1.0, 9, job_trials=round_ + 1)
                picks.end_picks(session, [ending])

    found = task_stats.trials_of_jobs(session, [told, silent, idle, 99])

    assert found == {told: 3, silent: 3, idle: 0}
    for job_id in (told, silent):
        assert found[job_id] == sum(measure_records.own_trials(session, job_id).values())
