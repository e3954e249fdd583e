"""Jobs share devices by priority, regardless of round cost and start time; owners take turns."""

from collections.abc import Mapping

import numpy as np
import pytest

from scheduler.errors import SchedulerError
from scheduler.fairness import JobShare, OwnerTimes, Turns, charge, choose_job, join, share_of


def run(
    jobs: Mapping[int, JobShare], costs: Mapping[int, float], n_rounds: int, seed: int = 0
) -> tuple[dict[int, JobShare], dict[int, float]]:
    """Assign rounds of uneven cost; return the jobs and the seconds of each."""
    draws = np.random.default_rng(seed)
    current, secs = dict(jobs), dict.fromkeys(jobs, 0.0)
    for _ in range(n_rounds):
        chosen = choose_job(list(current.values()))
        assert chosen is not None
        cost = costs[chosen] * draws.uniform(0.5, 1.5)
        current[chosen] = current[chosen]._replace(virtual_secs=charge(current[chosen], cost))
        secs[chosen] += cost
    return current, secs


def test_shares_double_with_each_priority() -> None:
    """Over 10,000 rounds of uneven cost, device seconds go 4:2:1 within 1 %."""
    jobs = {i: JobShare(i, priority, 0.0) for i, priority in enumerate([2, 1, 0])}

    _, secs = run(jobs, {0: 7.0, 1: 1.0, 2: 3.0}, 10_000)

    shares = np.array([secs[i] for i in range(3)]) / sum(secs.values())
    assert shares == pytest.approx(np.array([4, 2, 1]) / 7, rel=0.01)


def test_equal_jobs_take_turns() -> None:
    """Ties go to the lowest id, so equal rounds alternate in order."""
    jobs = {i: JobShare(i, 0, 0.0) for i in (3, 1, 2)}
    order = []
    for _ in range(6):
        chosen = choose_job(list(jobs.values()))
        assert chosen is not None
        jobs[chosen] = jobs[chosen]._replace(virtual_secs=charge(jobs[chosen], 1.0))
        order.append(chosen)

    assert order == [1, 2, 3, 1, 2, 3]


def test_a_job_that_joins_gets_its_share_and_no_more() -> None:
    """Two old jobs keep a third of the time each from the start of the new one."""
    costs = {1: 1.0, 2: 1.0, 3: 1.0}
    old, _ = run({i: JobShare(i, 0, 0.0) for i in (1, 2)}, costs, 1000)
    joined = JobShare(3, 0, join(0.0, list(old.values())))

    _, secs = run(old | {3: joined}, costs, 60)

    assert secs[3] / sum(secs.values()) == pytest.approx(1 / 3, abs=0.05)


def test_a_paused_job_is_not_owed_its_time() -> None:
    """A resumed job continues level with the others instead of catching up."""
    costs = {1: 1.0, 2: 1.0}
    both, _ = run({i: JobShare(i, 0, 0.0) for i in costs}, costs, 20)
    alone, _ = run({1: both[1]}, costs, 1000)
    back = both[2]._replace(virtual_secs=join(both[2].virtual_secs, list(alone.values())))

    _, secs = run({1: alone[1], 2: back}, costs, 100)

    assert secs[2] / sum(secs.values()) == pytest.approx(0.5, abs=0.05)


def test_a_short_pause_forgives_nothing() -> None:
    """A job ahead of the others keeps its virtual time, so that a pause gains no share."""
    assert join(50.0, [JobShare(1, 0, 10.0), JobShare(2, 0, 90.0)]) == 50.0
    assert join(5.0, [JobShare(1, 0, 10.0), JobShare(2, 0, 90.0)]) == 10.0
    assert join(5.0, []) == 5.0


_BUSY, _IDLE = JobShare(1, 0, 0.0, n_in_flight=2), JobShare(2, 0, 15.0)
_OVERFLOWING = [JobShare(job_id, -30, 1e308, n_in_flight=9) for job_id in (2, 1)]
_OF_OWNERS = [JobShare(3, 0, 1.0, owner="a"), JobShare(2, 0, 1.0, owner="b"), JobShare(1, 0, 2.0)]
_BUSY_OWNER = [
    *(JobShare(number, 0, 0.0, 1, "a") for number in range(3)),
    JobShare(3, 0, 0.0, owner="b"),
]


@pytest.mark.parametrize(
    ("jobs", "owners", "secs", "chosen"),
    [
        ([], {}, 1.0, None),
        # Rounds in flight count in advance, less so with priority.
        ([_BUSY, _IDLE], {}, 10.0, 2),
        ([_BUSY, _IDLE], {}, 1.0, 1),
        ([_BUSY._replace(priority=1), _IDLE], {}, 10.0, 1),
        # Times that overflow are level, and ties go to the lowest id.
        (_OVERFLOWING, {}, 1e308, 1),
        # An owner that occupies devices by several jobs lets others go first.
        (_BUSY_OWNER, {"b": 25.0}, 10.0, 3),
        (_BUSY_OWNER, {"b": 35.0}, 10.0, 0),
        # Of level owners the job furthest behind goes next.
        (_OF_OWNERS, {}, 1.0, 2),
        (_OF_OWNERS, {"b": 1.0}, 1.0, 3),
    ],
)
def test_who_is_furthest_behind_goes_next(
    jobs: list[JobShare], owners: dict[str | None, float], secs: float, chosen: int | None
) -> None:
    """Owners come before their jobs, and what occupies devices before what waits."""
    assert choose_job(jobs, owners, typical_secs=secs) == chosen


@pytest.mark.parametrize("virtual_secs", [-1.0, float("nan"), float("inf")])
def test_a_bad_virtual_time_is_refused(virtual_secs: float) -> None:
    """The message contains the job and the value."""
    jobs = [JobShare(1, 0, 0.0), JobShare(2, 0, virtual_secs)]

    with pytest.raises(SchedulerError, match=f"virtual_secs of job 2 .* got {virtual_secs}"):
        choose_job(jobs)


def test_absurd_priorities_and_clocks_stay_finite() -> None:
    """Beyond 30 doublings a priority adds nothing; a clock that went back charges nothing."""
    assert share_of(10**6) == share_of(30) == 2.0**30
    assert share_of(-(10**6)) == 2.0**-30
    assert charge(JobShare(1, 10**6, 1.0), 8.0) > 1.0
    assert charge(JobShare(1, 0, 5.0), -3.0) == 5.0


def shares_of_owners(jobs: list[JobShare], n_rounds: int) -> dict[str | None, float]:
    """Assign equal rounds to jobs of several owners; return the share of each owner."""
    owners, current = OwnerTimes(), {job.job_id: job for job in jobs}
    secs: dict[str | None, float] = {}
    for _ in range(n_rounds):
        chosen = choose_job(list(current.values()), owners.virtual_secs)
        assert chosen is not None
        job = current[chosen]
        owners.charge(job, 1.0)
        current[chosen] = job._replace(virtual_secs=charge(job, 1.0))
        secs[job.owner] = secs.get(job.owner, 0.0) + 1.0 / n_rounds
    return secs


def test_owners_share_equally_however_many_jobs_they_have() -> None:
    """A hundred jobs of one owner get as much as the only job of another."""
    many = [JobShare(number, 0, 0.0, owner="many") for number in range(100)]
    jobs = [*many, JobShare(100, 0, 0.0, owner="one"), JobShare(101, 0, 0.0)]

    assert shares_of_owners(jobs, 300) == pytest.approx({"many": 1 / 3, "one": 1 / 3, None: 1 / 3})


def test_a_priority_doubles_the_share_of_its_owner() -> None:
    """Owners with one job each share as the jobs themselves would."""
    jobs = [JobShare(1, 1, 0.0, owner="a"), JobShare(2, 0, 0.0, owner="b")]

    assert shares_of_owners(jobs, 300) == pytest.approx({"a": 2 / 3, "b": 1 / 3}, rel=0.02)


def test_an_owner_that_comes_back_is_not_owed_its_time() -> None:
    """It starts level with the owner furthest behind, and a second job changes nothing."""
    owners = OwnerTimes()
    first, second = JobShare(1, 0, 0.0, owner="a"), JobShare(2, 0, 0.0, owner="b")
    owners.join("a", [])
    owners.charge(first, 50.0)
    owners.join("b", [first])
    owners.join("a", [first, second])

    assert owners.virtual_secs == {"a": 50.0, "b": 50.0}


def test_owners_take_turns() -> None:
    """An owner with many items delays another by one at most."""
    waiting = [(number, "many") for number in range(4)] + [(4, "one"), (5, "two"), (6, "one")]
    turns, served = Turns(), []
    while waiting:
        item = turns.ordered(waiting, lambda item: item[1])[0]
        turns.serve(item[1])
        waiting.remove(item)
        served.append(item[0])

    assert served == [0, 4, 5, 1, 6, 2, 3]
