"""Jobs on a Ray cluster whose processes and nodes are killed: whole in the end, all the same."""

import json
from collections import Counter
from contextlib import suppress
from typing import Any

import psutil
import pytest
from sqlalchemy import func, select

from records.models import MeasureRecord
from tests.engines import toy
from tests.engines.faults import checksum
from tests.faults.conftest import DEVICE, Hall, Repeat
from tests.ray_rack import Rack

pytestmark = [
    pytest.mark.parametrize("workers", ["cluster"], indirect=True),
    pytest.mark.slow("starts a cluster of Ray"),
]


def n_records(hall: Hall) -> int:
    """Trials that are stored."""
    with hall.sessions() as session:
        return session.scalar(select(func.count(MeasureRecord.id))) or 0


def errors(hall: Hall) -> Counter[str | None]:
    """Count the trials by error kind."""
    with hall.sessions() as session:
        return Counter(session.scalars(select(MeasureRecord.error_kind)))


def devices(hall: Hall) -> set[str | None]:
    """Return the devices that measured trials."""
    with hall.sessions() as session:
        return set(session.scalars(select(MeasureRecord.worker)))


def tune(hall: Hall, trials: int) -> None:
    """Tune a job, and check that nothing was lost and nothing counted twice."""
    job = hall.job_of("net", trials)
    coordinator = hall.run(job)
    assert coordinator.failures == {}
    hall.check_whole(job, trials=trials)


def test_job_spreads_over_devices(hall: Hall) -> None:
    """Both devices measure for one job."""
    tune(hall, 60)

    assert devices(hall) == {"left/cpu", "right/cpu"}


def test_agents_that_are_killed_cost_no_trial(hall: Hall, rack: Rack) -> None:
    """Kill -9 of one agent after the other: calls are made again."""
    nodes = ["left", "head", "right"]

    def kill() -> None:
        if nodes and n_records(hall) >= 12 * (4 - len(nodes)):
            for agent in rack.agents(nodes.pop())[:1]:
                agent.kill()

    with Repeat(kill, lambda: 0.02):
        tune(hall, 60)

    assert nodes == []
    assert set(errors(hall)) <= {None, "run_error"}


@pytest.mark.parametrize("function", ["build", "run"])
def test_candidate_that_takes_every_agent_along_is_tried_twice(hall: Hall, function: str) -> None:
    """It is recorded as what it is, and costs no other candidate its trial."""
    tasks = [toy.make_task("small", weight=1, base_secs=1e-3, n_programs=16)]
    poison = json.dumps({"task": "small", "program": 7})
    hall.control.inject(**{function: [{"fault": "kill_agent", "only": [checksum(poison)]}]})
    job = hall.session(hall.prepare("small", extracted=tasks), 40, trials_per_round=4)

    hall.run(job)

    assert hall.job(job.job_id).state == "done"
    assert len(hall.trials()) == 16
    assert errors(hall)["worker_lost"] == 1


def test_answer_that_comes_late_counts_once(hall: Hall, rack: Rack) -> None:
    """An agent that was stopped goes on after its call was given up."""
    job = hall.job_of("net", 40)
    runners: Any = hall.workers.runners
    left = next(runner.agent for runner in runners if runner.name == "left/cpu")
    stopped: list[psutil.Process] = []

    def stop() -> None:
        if not stopped and n_records(hall) >= 12:
            stopped.extend(rack.agents("left"))
            for agent in stopped:
                agent.suspend()
        elif stopped and not left.is_ready:
            resume(stopped)

    try:
        with Repeat(stop, lambda: 0.02):
            hall.run(job)
    finally:
        resume(stopped)

    assert stopped
    hall.check_whole(job, trials=40)


def resume(processes: list[psutil.Process]) -> None:
    """Let those go on that live."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.resume()


@pytest.mark.guards_data
def test_node_that_is_lost_costs_no_trial(hall: Hall, rack: Rack) -> None:
    """The other device finishes the job; the round that was under way is whole."""
    killed: list[str] = []

    def kill() -> None:
        if not killed and n_records(hall) >= 12:
            killed.append("right")
            rack.kill("right")

    with Repeat(kill, lambda: 0.02):
        tune(hall, 60)

    assert killed
    assert devices(hall) == {"left/cpu", "right/cpu"}
    assert set(errors(hall)) <= {None, "run_error"}
    rack.add("right", DEVICE)
