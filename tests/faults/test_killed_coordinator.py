"""Kill -9 of a coordinator that has rounds in flight on two devices, and of all its workers."""

import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from records.models import MeasureRecord, Pick
from tests.cli import ROOT, environ_of, start
from tests.engines.toy_network import open_sessions
from tests.faults import two_devices
from tests.faults.conftest import check_bests, check_counts
from tests.forked import Process
from tests.waiting import wait_for

# Starting a coordinator and its workers takes a minute beside other work; only a hang takes longer.
_END_SECS = 240.0


@pytest.mark.parametrize(
    ("n_kills", "trials"),
    [
        pytest.param(2, 48, marks=[pytest.mark.slow("20 s: 2 kills"), pytest.mark.in_ci]),
        pytest.param(20, 400, marks=pytest.mark.slow("minutes: 20 kills")),
    ],
)
def test_killed_coordinator_goes_on_with_all_rounds(
    tmp_path: Path, n_kills: int, trials: int
) -> None:
    """Picks that were open are finished, the budget is spent exactly, no process is left."""
    sessions = open_sessions(f"sqlite:///{tmp_path / 'tuner.db'}")
    rng = random.Random(3)
    n_open = 0
    kept: list[str] = []
    for _ in range(n_kills):
        n_before = count(sessions)
        if n_before >= trials - 12:
            break
        process = start_coordinator(tmp_path, trials)
        wait_for(lambda: count(sessions) > n_before, _END_SECS)  # noqa: B023
        time.sleep(rng.random() * 0.3)
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        before, kept = kept, traces(sessions)
        assert kept[: len(before)] == before
        n_open = max(n_open, len(open_picks(sessions)))
        assert not psutil.wait_procs(children, 30.0)[1]

    last = start_coordinator(tmp_path, trials)
    assert last.wait(_END_SECS) == 0, (tmp_path / "log").read_text()[-2000:]
    assert n_open >= 2
    assert traces(sessions)[: len(kept)] == kept
    check_counts(sessions, {1: trials})
    check_bests(sessions)


def test_coordinator_that_is_stopped_for_a_while_goes_on(tmp_path: Path) -> None:
    """Results that its devices measured while it was stopped are stored once."""
    sessions = open_sessions(f"sqlite:///{tmp_path / 'tuner.db'}")
    process = start_coordinator(tmp_path, 32)
    wait_for(lambda: count(sessions) > 4, _END_SECS)

    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(1.0)
    os.kill(process.pid, signal.SIGCONT)

    assert process.wait(_END_SECS) == 0, (tmp_path / "log").read_text()[-2000:]
    check_counts(sessions, {1: 32})


def start_coordinator(folder: Path, trials: int) -> Process:
    """Start a coordinator on a database, with the two devices."""
    url = f"sqlite:///{folder / 'tuner.db'}"
    environ = {**environ_of(folder), "TOY_RUN_SECS": "0.02"}
    program = (two_devices.__name__, url, str(folder), str(trials))
    with (folder / "log").open("ab") as log:
        return start(program, environ, ROOT, log)


def count(sessions: sessionmaker[Session]) -> int:
    """Count the records."""
    return len(traces(sessions))


def traces(sessions: sessionmaker[Session]) -> list[str]:
    """Return the hashes of all traces, the oldest first."""
    with sessions() as session:
        stmt = select(MeasureRecord.trace_hash).order_by(MeasureRecord.id)
        return list(session.scalars(stmt))


def open_picks(sessions: sessionmaker[Session]) -> list[int]:
    """Return the picks whose rounds were in flight."""
    with sessions() as session:
        return list(session.scalars(select(Pick.id).where(~Pick.done)))
