"""Workers of two devices that are killed, stopped or poisoned while rounds overlap."""

import json
import os
import random
import signal
from collections import Counter
from contextlib import suppress

import psutil
import pytest
from sqlalchemy import select

from records.models import MeasureRecord
from tests.engines import toy
from tests.engines.faults import checksum
from tests.engines.toy_network import bests_of
from tests.faults.conftest import Hall, Repeat, workers_of
from tests.waiting import wait_for
from tuner.engines.base import Candidate
from tuner.errors import WorkError
from tuner.tuning.session import TuningSession
from tuner.workers.pool import Pool


def pools(hall: Hall) -> list[Pool]:
    """Return the pools of the builders and of both devices."""
    return [hall.workers.builders, *(runner.pool for runner in hall.workers.runners)]  # type: ignore[attr-defined]


def errors(hall: Hall) -> Counter[str | None]:
    """Count the trials by error kind."""
    with hall.sessions() as session:
        return Counter(session.scalars(select(MeasureRecord.error_kind)))


@pytest.mark.parametrize(
    ("n_kills", "trials"),
    [(12, 60), pytest.param(300, 2000, marks=pytest.mark.slow("minutes: 300 kills"))],
)
def test_workers_killed_at_any_moment_cost_no_trial_twice(
    hall: Hall, n_kills: int, trials: int
) -> None:
    """Builders and both devices lose their processes, busy or idle, again and again."""
    rng = random.Random(7)
    killed: list[psutil.Process] = []

    n_seen = -1

    def kill() -> None:
        nonlocal n_seen
        pool = rng.choice(pools(hall))
        alive = workers_of(pool)
        if pool is hall.workers.builders:
            # A search that loses its process three times in a row ends its job.
            n_records = sum(errors(hall).values())
            if n_records == n_seen:
                return
            n_seen = n_records
        if alive and len(killed) < n_kills:
            killed.append(rng.choice(alive))
            with suppress(psutil.NoSuchProcess):
                killed[-1].kill()

    pair = [hall.job_of(name, trials) for name in ("one", "two")]
    with Repeat(kill, lambda: rng.uniform(0.02, 0.3)):
        coordinator = hall.run(*pair)

    assert coordinator.failures == {}
    assert len(killed) >= min(n_kills, 5)
    hall.check_whole(*pair, trials=trials)
    assert not psutil.wait_procs(killed, 30.0)[1]


def test_finals_whose_processes_are_killed_are_run_again(hall: Hall) -> None:
    """Every winner is confirmed all the same."""
    hall.control.inject(run_interleaved=[{"fault": "kill", "once": True}])
    job = hall.job_of("one", 24)

    hall.run(job)

    assert hall.control.strikes("run_interleaved") > 0
    assert {confirmed for *_, confirmed in bests_of(hall.sessions)} == {True}


@pytest.mark.parametrize("function", ["propose", "build", "run"])
def test_workers_killed_in_their_calls_cost_no_trial(hall: Hall, function: str) -> None:
    """Each call that is hit is made once more."""
    hall.control.inject(**{function: [{"fault": "kill", "one_in": 4, "once": True}]})
    job = hall.job_of("one", 32)

    hall.run(job)

    hall.check_whole(job, trials=32)
    assert hall.control.strikes(function) > 0
    assert "worker_lost" not in errors(hall)


@pytest.mark.parametrize("function", ["build", "run"])
def test_candidate_that_kills_every_worker_is_tried_twice(hall: Hall, function: str) -> None:
    """The candidate is quarantined: one record, and it is not proposed again."""
    tasks = [toy.make_task("small", weight=1, base_secs=1e-3, n_programs=16)]
    poison = json.dumps({"task": "small", "program": 7})
    hall.control.inject(**{function: [{"fault": "kill", "only": [checksum(poison)]}]})
    job = hall.session(hall.prepare("small", extracted=tasks), 40, trials_per_round=4)

    hall.run(job)

    assert hall.job(job.job_id).state == "done"
    assert len(hall.trials()) == 16
    with hall.sessions() as session:
        lost = select(MeasureRecord.trace).where(MeasureRecord.error_kind == "worker_lost")
        assert session.scalars(lost).all() == [poison]


def test_answer_that_comes_too_late_counts_once(hall: Hall) -> None:
    """The process of a device is stopped until its call has timed out or is lost, and goes on."""
    device = hall.workers.runners[0].pool  # type: ignore[attr-defined]
    stopped: list[psutil.Process] = []

    def stop_one() -> None:
        if len(hall.trials()) >= 8 and not stopped:
            stopped.extend(workers_of(device))
            os.kill(stopped[0].pid, signal.SIGSTOP)

    job = hall.job_of("one", 60)
    with Repeat(stop_one, lambda: 0.02):
        hall.run(job)
    with suppress(ProcessLookupError):
        os.kill(stopped[0].pid, signal.SIGCONT)

    hall.check_whole(job, trials=60)
    # Lost, where it was stopped before it took the call: that is made again.
    assert errors(hall)["run_timeout"] <= 1
    wait_for(lambda: not stopped[0].is_running())


def test_job_that_fails_takes_its_rounds_along_and_nobody_elses(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a round on each device when its searches fail; the other job spends its budget."""
    bad, good = hall.job_of("bad", 200), hall.job_of("good", 60)
    fail_after(bad, 4, monkeypatch)

    coordinator = hall.run(bad, good)

    assert set(coordinator.failures) == {bad.job_id}
    assert hall.job(bad.job_id).state == "failed"
    assert hall.job(good.job_id).state == "done"
    monkeypatch.undo()
    again = hall.job_of("bad", 200)
    hall.run(again)
    assert again.job_id == bad.job_id
    with hall.sessions() as session:
        kept = session.execute(select(MeasureRecord.task_id, MeasureRecord.trace_hash)).all()
    assert len(kept) == len(set(kept)) == 260


def fail_after(job: TuningSession, n_rounds: int, patch: pytest.MonkeyPatch) -> None:
    """Let every search of a job fail after ``n_rounds`` rounds."""
    propose, left = job._round_runner._propose, [n_rounds]

    async def failing(*args: object) -> list[Candidate]:
        left[0] -= 1
        if left[0] < 0:
            raise WorkError("out of luck")
        return await propose(*args)  # type: ignore[arg-type]

    patch.setattr(job._round_runner, "_propose", failing)
