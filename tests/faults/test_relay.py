"""Faults of an engine in an environment of its own: its workers are killed, stopped, resumed."""

import json
import os
import signal
import sqlite3
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.cli import Cli, finish
from tests.engines.faults import CONTROL, Control
from tests.environments import RELAY_PYTHON, needs_relay
from tests.waiting import wait_for

pytestmark = needs_relay

_TUNE = ("tune", "zoo:mlp", "--trials-per-round", "4", "--json")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Commands with the engine relay, whose faults a file tells."""
    settings = {
        "TUNER_ENGINE": "relay:tests.engines.faulty_relay",
        "TUNER_RELAY_PYTHON": str(RELAY_PYTHON),
        CONTROL: str(tmp_path / "control.json"),
        # Faults are read from files that no worker may read.
        "TUNER_WORKER_SANDBOX": "off",
    }
    return Cli(tmp_path, settings)


@pytest.fixture
def control(cli: Cli) -> Control:
    """The file."""
    return Control(Path(cli.settings[CONTROL]))


def trials(cli: Cli) -> list[tuple[int, str, str | None]]:
    """Task, trace and error kind of every stored trial."""
    with sqlite3.connect(f"file:{cli.data_dir / 'tuner.db'}?mode=ro", uri=True) as connection:
        query = "SELECT task_id, trace_hash, error_kind FROM measure_record ORDER BY id"
        return list(connection.execute(query))


@pytest.mark.slow("40 s: Relay starts for every killed worker")
def test_killed_and_hung_workers_cost_their_own_trials(cli: Cli, control: Control) -> None:
    """A builder, a runner killed at every attempt, a kernel that never ends: each its kind."""
    control.inject(
        build=[{"fault": "kill", "one_in": 4}],
        run=[{"fault": ["kill", "hang"], "one_in": 3}],
    )

    answer = cli(*_TUNE, "--trials", "12", "--run-timeout", "8", "--seed", "3")

    assert answer.status == 0, answer.err
    stored = trials(cli)
    kinds = Counter(kind for _, _, kind in stored)
    assert len(stored) == len({(task, trace) for task, trace, _ in stored}) == 12
    assert kinds["worker_lost"] >= 1
    assert set(kinds) <= {None, "worker_lost", "run_timeout"}
    assert kinds[None] >= 3


def test_workers_end_with_a_killed_run(cli: Cli) -> None:
    """Kill -9 takes the workers along, those that start and those that work."""
    first = cli.start(*_TUNE, "--trials", "8")
    wait_for(lambda: len(cli.workers_of(first)) >= 2, 240.0)
    workers = cli.workers_of(first)
    os.killpg(first.pid, signal.SIGKILL)
    finish(first)

    assert not psutil.wait_procs(workers, 30.0)[1]


@pytest.mark.slow("two minutes of real tuning; what is engine-independent runs with the toy engine")
def test_a_killed_run_goes_on_where_it_was(cli: Cli) -> None:
    """No trial is lost or spent twice."""
    first = cli.start(*_TUNE, "--trials", "8")
    wait_for(lambda: cli.count_records() >= 2, 240.0)
    os.killpg(first.pid, signal.SIGKILL)
    finish(first)
    before = trials(cli)

    answer = cli(*_TUNE, "--trials", "8")

    assert answer.status == 0, answer.err
    after = trials(cli)
    assert after[: len(before)] == before
    assert len(after) == len({(task, trace) for task, trace, _ in after}) == 8
    assert json.loads(answer.out)["trials"] == 8
