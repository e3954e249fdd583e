"""Commands that tune with the toy engine and are killed, interrupted or run side by side."""

import os
import random
import shlex
import signal
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session, sessionmaker

from records.models import Job, now
from records.service.service_models import Lease
from tests.cli import Cli, finish
from tests.engines import toy
from tests.engines.toy_network import bests_of, open_sessions, picks_of, trials_of
from tests.forked import Process
from tests.waiting import wait_for

TRIALS = "64"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Commands that use the toy engine."""
    return Cli(tmp_path, {"TUNER_ENGINE": toy.NAME, "TUNER_N_BUILDERS": "2"})


def tune(trials: str = TRIALS, model: str = "zoo:mlp", seed: str = "0") -> tuple[str, ...]:
    """Return the arguments of a quick ``tuner tune``."""
    return ("tune", model, "--trials", trials, "--trials-per-round", "8", "--seed", seed)


@pytest.mark.parametrize(
    ("n_kills", "trials"),
    [
        pytest.param(
            2,
            TRIALS,
            marks=[pytest.mark.slow("25 s: 2 kills"), pytest.mark.in_ci],
        ),
        pytest.param(50, "640", marks=pytest.mark.slow("minutes: 50 kills")),
    ],
)
def test_a_killed_command_continues_as_an_undisturbed_one(
    tmp_path: Path, n_kills: int, trials: str
) -> None:
    """SIGKILL at random moments changes neither the picks nor the records."""
    settings = {"TUNER_ENGINE": toy.NAME, "TUNER_N_BUILDERS": "2", "TOY_RUN_SECS": "0.02"}
    calm, rough = (Cli(tmp_path / name, settings) for name in ("calm", "rough"))
    for cli in (calm, rough):
        cli.folder.mkdir()
    command = tune(trials)
    assert calm(*command, TOY_RUN_SECS="0").status == 0
    rng = random.Random(2)
    n_killed = 0
    while n_killed < n_kills:
        process = rough.start(*command)
        before = rough.count_records()
        # Up to a round of new records, and then any moment of the next few.
        wait_for(lambda: process.poll() is not None or rough.count_records() > before)  # noqa: B023
        time.sleep(rng.random() * 0.15)
        workers = _descendants(process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        n_killed += 1
        wait_for(lambda: not any(worker.is_running() for worker in workers))  # noqa: B023
        if rough.count_records() >= int(trials):
            break
    n_before_last = rough.count_records()
    answer = rough(*command, "--json")

    assert n_killed == n_kills
    assert answer.json["measured_now"] == int(trials) - n_before_last
    assert trials_of(open_sessions(rough.url)) == trials_of(open_sessions(calm.url))
    assert picks_of(open_sessions(rough.url)) == picks_of(open_sessions(calm.url))
    assert bests_of(open_sessions(rough.url)) == bests_of(open_sessions(calm.url))


@pytest.mark.parametrize(
    ("number", "status", "name", "whole_group"),
    [
        # A terminal signals every process, a service manager the first.
        (signal.SIGINT, 130, "Ctrl-C", True),
        pytest.param(
            *(signal.SIGTERM, 143, "SIGTERM", False),
            marks=pytest.mark.slow("15 s; Ctrl-C is tested always"),
        ),
    ],
)
def test_a_signal_stops_a_command_cleanly(
    cli: Cli, number: signal.Signals, status: int, name: str, whole_group: bool
) -> None:
    """A stopped command says how to continue, and leaves a paused job and no process.

    A second command is refused before: two that measure on one CPU would slow each other's
    candidates.
    """
    process = cli.start(*tune("4000"), TOY_RUN_SECS="0.02")
    wait_for(lambda: cli.count_records() > 3)
    workers = _descendants(process)
    second = cli(*tune("40", "zoo:mlp?batch=2"), "--json")
    _send(process, number, whole_group=whole_group)
    answer = finish(process, 60)

    assert (second.status, second.out) == (1, "")
    assert second.err.startswith(f"tuner: process {process.pid} is measuring on this machine")
    assert len(second.err.splitlines()) == 1
    assert answer.status == status
    assert answer.complaint.startswith(f"tuner: stopped by {name}; finished work is kept")
    assert "Traceback" not in answer.err
    assert answer.out == ""
    assert len(workers) >= 3
    wait_for(lambda: not any(worker.is_running() for worker in workers))
    with open_sessions(cli.url)() as session:
        assert session.get_one(Job, 1).state == "paused"
    n_before = cli.count_records()
    again = cli(*tune(str(n_before + 8)), "--json")
    assert again.status == 0
    assert again.json["measured_now"] == 8


@pytest.mark.slow("15 s; Ctrl-C is tested always")
def test_repeated_signals_are_as_good_as_one(cli: Cli) -> None:
    """Ctrl-C three times stops a command as cleanly as once."""
    process = cli.start(*tune("4000"), TOY_RUN_SECS="0.02")
    wait_for(lambda: cli.count_records() > 3)
    for _ in range(3):
        _send(process, signal.SIGINT, whole_group=True)
    answer = finish(process, 60)

    assert answer.status == 130
    assert "Traceback" not in answer.err


def test_a_signal_before_the_first_trial_stops_a_command_cleanly(cli: Cli) -> None:
    """A command that is stopped while it loads its model reports that in one line."""
    process = cli.start(*tune("4000"))
    wait_for(lambda: len(_descendants(process)) >= 3)
    workers = _descendants(process)
    _send(process, signal.SIGINT, whole_group=False)
    answer = finish(process, 60)

    assert answer.status == 130
    assert "Traceback" not in answer.err
    wait_for(lambda: not any(worker.is_running() for worker in workers))


@pytest.mark.slow("two commands for 12 s")
def test_two_commands_share_a_database(cli: Cli) -> None:
    """Two networks tuned at once from two data directories count no trial twice."""
    cli.data_dir.mkdir()
    commands = [
        cli.start(
            *tune("40", f"zoo:mlp?batch={batch}"),
            *("--database", cli.url, "--data-dir", str(cli.folder / f"data{batch}"), "--json"),
        )
        for batch in (1, 2)
    ]
    answers = [finish(command) for command in commands]

    assert [answer.status for answer in answers] == [0, 0], answers
    counted = Counter(
        (trial.task_id, trial.trace_hash) for trial in trials_of(open_sessions(cli.url))
    )
    assert set(counted.values()) == {1}


def _descendants(process: Process) -> list[psutil.Process]:
    try:
        children: list[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return children


def _send(process: Process, number: int, *, whole_group: bool) -> None:
    if whole_group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)


@pytest.mark.in_ci
@pytest.mark.slow("15 s: two commands, one is killed")
def test_a_killed_command_is_paused_after_its_lease(cli: Cli) -> None:
    """It is shown as running for its lease at most; the next command takes its job up at once."""
    process = cli.start(*tune("4000"), TOY_RUN_SECS="0.05")
    wait_for(lambda: cli.count_records() > 3)
    assert cli("jobs", "ls", "--json").json["jobs"][0]["state"] == "running"
    process.send_signal(signal.SIGKILL)
    process.communicate()

    expire_leases(open_sessions(cli.url))
    (job,) = cli("jobs", "ls", "--json").json["jobs"]
    assert job["state"] == "paused"
    assert job["message"] == f"`tuner {shlex.join(tune('4000'))}` resumes it"

    n_before = cli.count_records()
    assert cli(*tune(str(n_before + 8)), "--json").json["measured_now"] == 8
    assert cli("table", "1", "--json").json["state"] == "done"


def expire_leases(sessions: sessionmaker[Session]) -> None:
    """Let the seconds of all leases pass."""
    with sessions.begin() as session:
        session.execute(update(Lease).values(expires=now() - timedelta(seconds=1)))
