"""Jobs on a Ray cluster whose processes and nodes are killed: whole in the end, all the same."""

import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from sqlalchemy import func, select

from records import database
from records.models import MeasureRecord
from tests.cli import ROOT
from tests.engines import faulty_toy
from tests.engines.faults import Control
from tests.faults.conftest import Hall, Meanwhile, wait_until
from tests.ray_rack import Rack
from tuner.config import Settings
from tuner.executors.ray import RayExecutor
from tuner.inventory import resource_of

if TYPE_CHECKING:
    import psutil

    from tuner.executors.local import LocalExecutor

DEVICE = {resource_of("llvm", {"name": "toy"}): 1}
_NODES = ("left", "right")
_START_SECS = 120.0


@pytest.fixture(scope="module")
def rack(control: Control, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    """Two builders and two devices."""
    control.inject()
    with Rack(tmp_path_factory.mktemp("rack"), head_cpus=2) as started:
        for node in _NODES:
            started.add(node, DEVICE)
        yield started


@pytest.fixture
def hall(rack: Rack, control: Control, tmp_path: Path) -> Iterator[Hall]:
    """An empty database beside the cluster; every test starts without faults."""
    from tuner.executors.ray_slots import Patience

    control.inject()
    settings = Settings("", tmp_path, faulty_toy.NAME, 2, ray_address=rack.address)
    engine = database.open_database(f"sqlite:///{tmp_path / 'tuner.db'}")
    patience = Patience(poll_secs=0.2, grace_secs=8.0, fetch_secs=4.0)
    with RayExecutor(settings, patience=patience) as executor:
        wait_until(lambda: len(executor.runners) == len(_NODES), _START_SECS)
        workers = cast("LocalExecutor", executor)
        yield Hall(database.sessions(engine), tmp_path, workers, control=control)
    engine.dispose()


def n_records(hall: Hall) -> int:
    """Trials that are stored."""
    with hall.sessions() as session:
        return session.scalar(select(func.count(MeasureRecord.id))) or 0


def errors(hall: Hall) -> Counter[str | None]:
    """How many trials had which error."""
    with hall.sessions() as session:
        return Counter(session.scalars(select(MeasureRecord.error_kind)))


def devices(hall: Hall) -> set[str | None]:
    """Where trials were measured."""
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


def test_garbage_costs_its_own_trial(hall: Hall) -> None:
    """Answers that mean nothing are errors of their candidates, wherever they ran."""
    garbage = ["none", "text", "unsendable", "unreceivable", "huge", "odd_samples"]
    hall.control.inject(
        run=[{"fault": garbage, "one_in": 3}], build=[{"fault": garbage, "one_in": 5}]
    )

    tune(hall, 60)

    assert errors(hall)[None] > 0
    assert set(errors(hall)) <= {None, "run_error", "build_error"}


def test_workers_that_die_cost_their_own_trials(hall: Hall) -> None:
    """Segmentation faults and hung kernels are what they are on one machine."""
    hall.control.inject(
        run=[{"fault": ["segfault", "kill", "hang"], "one_in": 11}],
        build=[{"fault": "segfault", "one_in": 13}],
    )

    tune(hall, 40)

    assert errors(hall)[None] > 20


def test_agents_that_are_killed_cost_no_trial(hall: Hall, rack: Rack) -> None:
    """Kill -9 of one agent after the other: calls are made again."""
    nodes = itertools.cycle(["left", "head", "right", "head"])

    def kill() -> None:
        for agent in rack.agents(next(nodes))[:1]:
            agent.kill()

    with Meanwhile(kill, lambda: 3.0):
        tune(hall, 200)

    assert set(errors(hall)) <= {None, "run_error"}


def test_answer_that_comes_late_counts_once(hall: Hall, rack: Rack) -> None:
    """An agent that was stopped goes on after its call was made again elsewhere."""
    job = hall.job_of("net", 80)
    stopped: list[psutil.Process] = []

    def stop() -> None:
        if not stopped and n_records(hall) >= 40:
            stopped.extend(rack.agents("left"))
            for agent in stopped:
                agent.suspend()
        elif stopped and "left/cpu" not in {runner.name for runner in hall.workers.runners}:
            for agent in stopped:
                if agent.is_running():
                    agent.resume()

    with Meanwhile(stop, lambda: 0.02):
        hall.run(job)

    assert stopped
    hall.check_whole(job, trials=80)


def test_node_that_is_lost_costs_no_trial(hall: Hall, rack: Rack) -> None:
    """The other device finishes the job; the round that was under way is whole."""
    killed: list[str] = []

    def kill() -> None:
        if not killed and n_records(hall) >= 12:
            killed.append("right")
            rack.kill("right")

    with Meanwhile(kill, lambda: 0.02):
        tune(hall, 120)

    assert killed
    assert devices(hall) == {"left/cpu", "right/cpu"}
    assert set(errors(hall)) <= {None, "run_error"}
    rack.add("right", DEVICE)


def test_coordinator_that_is_killed_leaves_no_agent(rack: Rack, tmp_path: Path) -> None:
    """Its cluster is free for the next one."""
    program = (
        "import sys, time, pathlib\n"
        "from tuner.config import Settings\n"
        "from tuner.executors.ray import RayExecutor\n"
        f"settings = Settings('', pathlib.Path(sys.argv[1]), '{faulty_toy.NAME}', 2,\n"
        f"                    ray_address='{rack.address}')\n"
        "executor = RayExecutor(settings)\n"
        "[call.result() for call in executor.warm_up()]\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    environ: dict[str, Any] = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        agents = rack.agents("left") + rack.workers("left")
        process.kill()

    assert len(agents) == 2
    wait_until(lambda: not any(each.is_running() for each in agents), _START_SECS)
