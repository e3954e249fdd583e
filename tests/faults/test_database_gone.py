"""A database that goes away in the middle of a job and comes back: nothing is lost."""

import time
from pathlib import Path
from typing import Any

import pytest

from records import database
from records.models import MeasureRecord
from tests.cli import Cli, finish
from tests.engines import toy
from tests.faults.conftest import check_bests, check_counts
from tests.service.rig import rig
from tests.waiting import wait_for

_TRIALS = 48


@pytest.mark.slow("25 s of tuning")
def test_command_waits_for_its_database(own_postgres: Any, tmp_path: Path) -> None:
    """PostgreSQL stops in the middle of a round; the command reports it and continues later."""
    url = own_postgres.get_uri()
    cli = Cli(tmp_path, {"TUNER_ENGINE": toy.NAME, "TUNER_N_BUILDERS": "1"})
    engine = database.open_database(url)
    sessions = database.sessions(engine)
    with rig(url, tmp_path) as watched:
        arguments = ("--trials", str(_TRIALS), "--trials-per-round", "4", "--database", url)
        process = cli.start("tune", "zoo:mlp", *arguments, "--json", TOY_RUN_SECS="0.1")
        wait_for(lambda: watched.n_trials() >= 4, 60.0)

        own_postgres.stop()
        time.sleep(2.0)
        own_postgres.start()
        answer = finish(process, 120.0)

        assert answer.status == 0, answer.err
        assert "the database failed, resuming when it is back" in answer.err
        assert answer.json["measured_now"] == _TRIALS
        check_counts(sessions, {1: _TRIALS})
        check_bests(sessions)
    engine.dispose()


@pytest.mark.in_ci
@pytest.mark.slow("a lease expires")
def test_worker_outlives_an_outage_of_its_database(own_postgres: Any, tmp_path: Path) -> None:
    """The worker stands by, takes its lease again and finishes the job."""
    with rig(own_postgres.get_uri(), tmp_path, run_secs=0.1) as opened:
        opened.start()
        job = opened.submit(trials=_TRIALS)
        wait_for(lambda: opened.n_trials() >= 4, 60.0)

        own_postgres.stop()
        time.sleep(15.0)
        own_postgres.start()

        wait_for(lambda: opened.state(job) == "done", 120.0)
        assert len(opened.all(MeasureRecord.id)) == _TRIALS
        opened.check_counts(job)


def test_command_does_not_wait_for_a_database_that_refuses(tmp_path: Path) -> None:
    """A database that refuses to be written does not come back: the command ends soon."""
    cli = Cli(tmp_path, {"TUNER_ENGINE": toy.NAME, "TUNER_N_BUILDERS": "1"})
    process = cli.start("tune", "zoo:mlp", "--trials", "4000", TOY_RUN_SECS="0.05")
    wait_for(lambda: cli.count_records() > 3, 60.0)
    # Every record written from now on is refused.
    engine = database.open_database(cli.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE measure_record RENAME TO elsewhere")
    engine.dispose()
    answer = finish(process, 60.0)

    assert answer.status == 1
    assert answer.complaint.startswith("tuner: the database failed: no such table"), answer.err
