"""Jobs are identified by their request."""

import pytest
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from records import jobs, networks
from records.errors import NoSuchRow
from records.models import Job
from records.service import submissions
from tests.records import make


def test_the_budget_of_a_command_is_that_of_its_last_run(session: Session) -> None:
    """The same request is the same job, whose limits may shrink."""
    first = make.job(session, budget_trials=200, budget_secs=60.0)

    again = make.job(session, budget_trials=100)

    job = session.get_one(Job, again)
    assert again == first
    assert (job.budget_trials, job.budget_secs) == (100, None)


@pytest.mark.parametrize(
    ("before", "given", "after"),
    [
        (100, 200, 200),  # a larger budget
        (200, 100, 200),  # raised since then
        (100, None, 100),  # not given
        (None, 100, 100),  # a limit where there was none
        (None, None, None),
    ],
)
def test_the_budget_of_a_job_of_the_service_never_shrinks(
    session: Session, before: int | None, given: int | None, after: int | None
) -> None:
    """A worker that has loaded its model gives it the limit that it lacks."""
    first = make.job(session, submission="first", budget_trials=before, budget_secs=before)

    make.job(session, submission="first", budget_trials=given, budget_secs=given)

    job = session.get_one(Job, first)
    assert (job.budget_trials, job.budget_secs) == (after, after)


def test_another_seed_is_another_job(session: Session) -> None:
    """Seeds of 64 bits are part of the key."""
    assert make.job(session, seed=2**62) != make.job(session, seed=1)


def test_states_and_spent_secs_are_kept(session: Session) -> None:
    """Seconds add up, a message is replaced, and the changed job is the latest."""
    job_id, newer = make.job(session, seed=1), make.job(session, seed=2)
    jobs.set_state(session, job_id, "failed", "no workers")
    jobs.add_spent_secs(session, job_id, 1.5)
    session.commit()

    job = jobs.add_spent_secs(session, job_id, 2.0)
    jobs.set_state(session, job_id, "running")

    assert (job.spent_secs, job.state, job.message) == (3.5, "running", None)
    assert job.updated > job.created
    assert job.created.tzinfo is not None
    assert jobs.find_job(session) is job
    assert session.get_one(Job, newer).state == "queued"


def test_an_unknown_state_is_refused(session: Session) -> None:
    """The database allows only the known states."""
    job_id = make.job(session)

    with pytest.raises(IntegrityError, match="state_known"):
        jobs.set_state(session, job_id, "lost")  # type: ignore[arg-type]


def test_an_unknown_job_raises(session: Session) -> None:
    """No job is created."""
    assert jobs.find_job(session) is jobs.find_job(session, 7) is None
    with pytest.raises(NoSuchRow, match="no job 7"):
        jobs.set_state(session, 7, "done")


def test_equivalent_jobs_have_the_same_tasks_and_goal(session: Session) -> None:
    """A larger network or another goal differs; the order of tasks does not matter."""
    for sha256, hashes in (("n0", ["w0", "w1"]), ("n1", ["w1", "w0"]), ("n2", ["w0", "w1", "w2"])):
        make_network(session, sha256, *hashes)
    tasks = [make.task(session, hashed) for hashed in ("w0", "w1")]
    mine = session.get_one(Job, make.job(session))
    same = make.job(session, network_id=make.network(session, "n1"))
    make.job(session, network_id=make.network(session, "n2"))
    make.job(session, seed=5, settings={"goal": {"patience": 3}})

    assert [twin.id for twin in jobs.equivalent_jobs(session, mine, tasks)] == [same]


def test_budgets_are_raised_and_no_limit_is_added(session: Session) -> None:
    """Missing limits stay missing, and smaller limits change nothing."""
    job_id = make.job(session, budget_trials=100)

    jobs.raise_budget(session, job_id, trials=50, secs=1.0)
    raised = jobs.raise_budget(session, job_id, trials=300)

    assert (raised.budget_trials, raised.budget_secs) == (300, None)


def test_a_state_is_set_only_from_the_named_states(session: Session) -> None:
    """The later of two changes leaves the earlier one in effect."""
    job_id = make.job(session)

    assert jobs.set_state(session, job_id, "cancelled", only_from=("queued", "running"))
    assert not jobs.set_state(session, job_id, "done", only_from=("running",))
    assert session.get_one(Job, job_id).state == "cancelled"


def make_network(session: Session, sha256: str, *hashes: str) -> None:
    """Make a network of these workloads."""
    networks.record_extraction(
        session,
        make.network(session, sha256),
        make.target(session),
        [(make.workload(hashed), 1) for hashed in hashes],
        n_kernel_calls=len(hashes),
    )


def test_a_deleted_job_becomes_visible_when_opened_again(session: Session) -> None:
    """A new request for a deleted job of the command line shows it again."""
    job_id = make.job(session)
    submissions.hide(session, job_id)

    assert make.job(session) == job_id
    assert not session.get_one(Job, job_id).hidden


def test_standings_are_those_in_the_database(session: Session) -> None:
    """Unknown jobs are left out, and rows cached in the session are refreshed."""
    first, second = make.job(session, 1, budget_trials=9, priority=2), make.job(session, 2)
    jobs.get_job(session, first)
    jobs.set_all_virtual_secs(session, {second: 2.5, first: 1.5, 99: 3.0})
    jobs.set_all_virtual_secs(session, {})

    rows = jobs.standings(session, [first, second, 99])

    assert rows == {
        first: (first, "queued", 9, None, 0.0, 2, 1.5, None),
        second: (second, "queued", None, None, 0.0, 0, 2.5, None),
    }
