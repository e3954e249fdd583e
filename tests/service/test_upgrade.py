"""A worker of an older version ends once another process has upgraded its database."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.service.rig import rig
from tests.waiting import wait_for


@pytest.mark.slow("10 s: a worker process starts, coordinates and ends")
@pytest.mark.parametrize("has_job", [False, pytest.param(True, marks=pytest.mark.in_ci)])
def test_a_coordinator_ends_when_its_schema_is_older(tmp_path: Path, has_job: bool) -> None:
    """It writes no trial after the upgrade, and its last line names the remedy."""
    path = tmp_path / "tuner.db"
    with rig(f"sqlite:///{path}", tmp_path, run_secs=0.05) as opened:
        worker = opened.start()
        if has_job:
            opened.submit(trials=2000)
            wait_for(lambda: opened.n_trials() > 4, 120.0)
        else:
            wait_for(lambda: any(one.role == "active" for one in opened.workers()))
        with closing(sqlite3.connect(path, timeout=30)) as newer, newer:
            newer.execute("BEGIN IMMEDIATE")
            newer.execute("UPDATE alembic_version SET version_num = '9999'")
            # As records.migrations.migrate does.
            newer.execute("UPDATE lease SET epoch = epoch + 1, holder = ''")
            (n_trials,) = newer.execute("SELECT count(*) FROM measure_record").fetchone()
        status = worker.wait(60)
        log = (tmp_path / "worker.0.log").read_text()

        assert status == 2
        assert "has schema revision 9999" in log.splitlines()[-1]
        assert opened.n_trials() == n_trials
