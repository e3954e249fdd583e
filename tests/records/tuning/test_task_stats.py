"""Trial counts equal the sums over all picks."""

from sqlalchemy.orm import Session

from records import measure_records, picks
from records.tuning import task_stats
from records.tuning.task_stats import TaskTrialCounts
from tests.records import make


def test_counts_of_a_task_include_all_jobs_and_imports(session: Session) -> None:
    """The last round of any job and the last pick of this job are returned."""
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


def test_trials_of_a_job_include_those_since_its_last_round(session: Session) -> None:
    """Rounds that have not ended, without stored totals, are counted as well."""
    with_totals, without, idle = (make.job(session, seed=seed) for seed in range(3))
    task_id = make.task(session)
    for job_id in (with_totals, without):
        for round_ in range(3):
            pick_id = make.pick(session, job_id, task_id, 2).id
            new = make.timed(task_id, f"{job_id}-{round_}", 1.0, pick_id=pick_id)
            measure_records.add_record(session, new)
            if job_id == with_totals and round_ < 2:
                ending = picks.RoundEnd(pick_id, job_id, 2.0, 1.0, 9, job_trials=round_ + 1)
                picks.end_picks(session, [ending])

    counts = task_stats.trials_of_jobs(session, [with_totals, without, idle, 99])

    assert counts == {with_totals: 3, without: 3, idle: 0}
    for job_id in (with_totals, without):
        assert counts[job_id] == sum(measure_records.own_trials(session, job_id).values())
