"""Tables, picks and histories agree with the snapshot of the scheduler."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from records import jobs
from records.errors import NoSuchRow
from records.service import submissions
from tests.engines.toy_network import Workshop, open_sessions
from tests.records.service.test_submissions import submission_of
from tuner.executors.local import LocalExecutor
from tuner.queries import history as history_queries
from tuner.queries import jobs as job_queries
from tuner.queries import picks as pick_queries
from tuner.queries.tasks import view_snapshot
from tuner.tuning.session import TuningSession

Ended = tuple[Workshop, TuningSession]


@pytest.fixture(scope="module")
def ended(workers: LocalExecutor, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """A session that ended, which tests only read."""
    folder = tmp_path_factory.mktemp("ended")
    shop = Workshop(open_sessions(f"sqlite:///{folder / 'tuner.db'}"), folder, workers)
    tuned = shop.session(shop.prepare("net"), 40, trials_per_round=4)
    shop.run(tuned)
    yield shop, tuned
    shop.sessions.kw["bind"].dispose()


def test_the_table_is_that_of_the_scheduler(ended: Ended) -> None:
    """Rows that are read from sums equal the rows of the session."""
    workshop, session = ended
    overview = session.snapshot()
    with workshop.sessions() as database:
        view = job_queries.read_job(database, session.job_id)

    own_terms: dict[str, Any] = {"gradient": None, "last_pick": None}
    assert [replace(task, **own_terms) for task in view.tasks] == view_snapshot(overview)
    assert all(task.gflops > 0 for task in view.tasks)
    assert view.job.total_latency_secs == pytest.approx(overview.total_latency_secs)
    assert (view.job.state, view.job.trials) == ("done", sum(overview.own))
    assert view.job.spent_trials >= 40


def test_every_task_has_its_last_pick(ended: Ended) -> None:
    """Each task has its newest pick and a gradient, and no round runs at the end."""
    workshop, session = ended
    with workshop.sessions() as database:
        view = job_queries.read_job(database, session.job_id)
        picks = pick_queries.read_picks(database, session.job_id)

    assert [pick.sequence for pick in picks] == list(range(len(picks), 0, -1))
    for line in view.tasks:
        newest = next(pick for pick in picks if pick.task_id == line.task_id)
        assert line.last_pick == newest
        assert newest.why
        assert line.gradient is not None
    assert not any(line.running for line in view.tasks)
    assert view.last_pick == picks[0]


def test_picks_come_in_pages(ended: Ended) -> None:
    """A page continues before the last number of the previous one."""
    workshop, session = ended
    with workshop.sessions() as database:
        first = pick_queries.read_picks(database, session.job_id, limit=3)
        second = pick_queries.read_picks(
            database, session.job_id, before=first[-1].sequence, limit=3
        )

    assert [pick.sequence for pick in second] == [first[-1].sequence - n for n in (1, 2, 3)]


@pytest.mark.parametrize("n_points", [1, 3, 4, 1000])
def test_a_history_ends_with_the_job_as_it_is_now(ended: Ended, n_points: int) -> None:
    """With any number of rounds, the last point has all trials and the latency of all lists."""
    workshop, session = ended
    with workshop.sessions() as database:
        history = history_queries.read_history(
            database, session.job_id, n_points=n_points, n_tasks=2
        )
        view = job_queries.read_job(database, session.job_id)

    trials = [point.trials for point in history.points]
    assert len(trials) <= n_points + 1
    assert trials == sorted(trials)
    assert trials[-1] == view.job.trials
    assert view.last_pick is not None
    assert history.points[-1].pick == view.last_pick.sequence
    assert history.points[-1].total_latency_secs == view.job.total_latency_secs
    assert [
        sum(column) for column in zip(*(t.trials for t in history.tasks), strict=True)
    ] == trials
    assert [line.task is None for line in history.tasks] == [False, False, True]


def test_failures_have_the_message_of_the_worker(ended: Ended) -> None:
    """Failures by kind add up to the failures of the table."""
    workshop, session = ended
    with workshop.sessions() as database:
        failures = history_queries.read_failures(database, session.job_id)
        view = job_queries.read_job(database, session.job_id)

    assert sum(failure.trials for failure in failures) == sum(line.failed for line in view.tasks)
    assert {failure.message for failure in failures} == {"the toy broke"}


def test_a_job_that_was_never_loaded_can_be_shown(workshop: Workshop) -> None:
    """A queued job has no network, no table and no history."""
    with workshop.sessions.begin() as database:
        job_id = submissions.submit(database, submission_of())[0].id
        view = job_queries.read_job(database, job_id)
        history = history_queries.read_history(database, job_id)

    assert (view.job.name, view.job.network, view.tasks) == ("mlp", None, [])
    assert view.job.total_latency_secs is None
    assert (history.points, history.tasks) == ([], [])
    assert view.job.from_service


def test_a_deleted_job_is_not_shown(workshop: Workshop) -> None:
    """A deleted job is found neither by number nor in lists."""
    with workshop.sessions.begin() as database:
        job_id = submissions.submit(database, submission_of())[0].id
        jobs.set_state(database, job_id, "done")
        assert [job.id for job in job_queries.list_jobs(database)] == [job_id]
        submissions.hide(database, job_id)
        with pytest.raises(NoSuchRow):
            job_queries.read_job(database, job_id)
        assert job_queries.list_jobs(database) == []
