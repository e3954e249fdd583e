"""Two workers on one database, and a database that goes away: nothing is lost or counted twice."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from records.models import Job, MeasureRecord
from tests.cli import ROOT, Cli, finish
from tests.engines import toy
from tests.engines.toy_network import open_sessions, trials_of
from tests.service.rig import Rig, get, rig
from tests.tuner.tuning.test_interrupted_command import expire_leases, tune
from tests.waiting import wait_for
from tuner.client import TunerClient

_TRIALS = 48


def check_done(opened: Rig, job: int) -> None:
    """Check that the job spent its budget, and that each trial counts once."""
    wait_for(lambda: opened.state(job) == "done", 60.0)
    assert len(opened.all(MeasureRecord.id)) == _TRIALS
    opened.check_counts(job)


@contextmanager
def counting_active(opened: Rig) -> Iterator[list[int]]:
    """Count the active workers all the time; yields the list of counts."""
    seen: list[int] = []
    stopping = threading.Event()

    def look() -> None:
        while not stopping.wait(0.1):
            seen.append(len(opened.active()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stopping.set()
        thread.join()


@contextmanager
def watching(url: str, job: int) -> Iterator[list[int]]:
    """Read the events of a job all the time; yields the list of their numbers."""
    seen: list[int] = []
    failures: list[Exception] = []

    def read() -> None:
        try:
            with TunerClient(url) as client:
                for event in client.events(job):
                    seen.append(event.sequence)
                    if event.kind == "state" and event.data["state"] == "done":
                        return
        except Exception as error:  # raised again where the test sees it
            failures.append(error)

    # A daemon: where the test fails, the job may never be done.
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield seen
    thread.join(20.0)
    assert not failures, failures
    assert not thread.is_alive(), "it still reads"


def check_unavailable(url: str, path: str) -> None:
    """Check that the API is alive, and reports that its database is away."""
    for checked in (path, "/readyz"):
        answer = get(url, checked)
        assert answer.status_code == 503, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"].endswith(":unavailable")
        assert int(answer.headers["retry-after"]) > 0
    assert get(url, "/healthz").status_code == 200
    assert "subgraph_tuner_database_up 0.0" in get(url, "/metrics").text


@pytest.mark.in_ci
@pytest.mark.slow("20 s: a lease has to expire")
def test_a_worker_that_slept_through_its_lease_writes_nothing(
    postgres_url: str, tmp_path: Path
) -> None:
    """It was stopped in the middle of a round, on a machine of its own, and stands by after.

    Not with SQLite: a process that is stopped in a transaction keeps the file locked.
    """
    with rig(postgres_url, tmp_path, run_secs=0.05, waits=True) as opened:
        job = opened.submit(trials=_TRIALS)
        sleeper = opened.start("one", TUNER_RUNTIME_DIR=str(tmp_path / "machine-one"))
        wait_for(lambda: opened.n_trials() >= 4)
        other = opened.start("two", TUNER_RUNTIME_DIR=str(tmp_path / "machine-two"))
        wait_for(lambda: len(opened.workers()) == 2)

        os.kill(sleeper.pid, signal.SIGSTOP)
        # The sleeper cannot say that it is not active any more.
        wait_for(lambda: other.pid in opened.active(), 15.0)
        before = opened.n_trials()
        wait_for(lambda: opened.n_trials() > before)
        os.kill(sleeper.pid, signal.SIGCONT)
        # It lost its lease, or its connection, which the server closes after a while.
        wait_for(lambda: any("standing by again" in line["message"] for line in opened.logs()))

        check_done(opened, job)
        assert opened.active() == [other.pid]


def hang(opened: Rig, pid: int) -> None:
    """Block the main thread of a worker for ever; its other threads run on."""
    os.kill(pid, signal.SIGUSR2)
    wait_for((opened.folder / "hung" / str(pid)).is_file)


@pytest.mark.slow("30 s: a main loop hangs and a lease expires")
@pytest.mark.parametrize(
    ("shares_machine", "shares_folder"),
    [
        pytest.param(True, True, marks=pytest.mark.in_ci),
        (False, False),
    ],
    ids=["one machine-one folder", "two machines-two folders"],
)
def test_a_standby_takes_over_from_a_worker_that_hangs(
    postgres_url: str, tmp_path: Path, shares_machine: bool, shares_folder: bool
) -> None:
    """The lease depends on the main loop, and not on the thread that renews it.

    With the data directory in common or not, on one machine or two; a worker that hangs in a round
    ends, so that two never measure at once on one machine.
    """
    hangs = str(Path(__file__).with_name("hanging"))
    rigged = rig(postgres_url, tmp_path, run_secs=0.05, waits=True)
    with rigged as opened, counting_active(opened) as seen:
        (tmp_path / "hung").mkdir()
        environ = {
            "PYTHONPATH": f"{hangs}:{ROOT}",
            "HANG_FOLDER": str(tmp_path / "hung"),
            "TUNER_MAX_STALL": "5s",
        }
        places = ["data", "data" if shares_folder else "other"]
        machines = ["one", "one" if shares_machine else "two"]
        job = opened.submit(trials=_TRIALS)
        pair = [
            opened.start(place, **environ, TUNER_RUNTIME_DIR=str(tmp_path / machine))
            for place, machine in zip(places, machines, strict=True)
        ]
        wait_for(lambda: len(opened.workers()) == 2 and opened.n_trials() >= 4, 90.0)
        (active,) = opened.active()
        first, second = sorted(pair, key=lambda process: process.pid != active)
        children = psutil.Process(active).children(recursive=True)

        hang(opened, first.pid)
        assert first.wait(20.0) == 70
        wait_for(lambda: opened.active() == [second.pid], 30.0)

        check_done(opened, job)
        assert not psutil.wait_procs(children, 30.0)[1]
        (given_up,) = [line for line in opened.logs() if "the lease is given up" in str(line)]
        assert "sleep" in "".join(given_up["stack"])
    assert set(seen) == {0, 1}


@pytest.mark.in_ci
@pytest.mark.slow("20 s without a database")
def test_a_job_survives_an_outage_of_its_database(own_postgres: Any, tmp_path: Path) -> None:
    """PostgreSQL stops in the middle of a round and starts seconds later.

    During the outage the API says how long to wait, and a client that watches misses no event.
    """
    with rig(own_postgres.get_uri(), tmp_path, run_secs=0.05) as opened:
        url = opened.serve()
        job = opened.submit(trials=_TRIALS)
        with watching(url, job) as seen:
            wait_for(lambda: opened.n_trials() >= 4 and seen)

            own_postgres.stop()
            check_unavailable(url, f"/api/v1/jobs/{job}")
            n_seen = len(seen)
            own_postgres.start()

            wait_for(lambda: get(url, "/readyz").is_success)
            assert get(url, f"/api/v1/jobs/{job}").json()["job"]["id"] == job
            check_done(opened, job)
            n_events = opened.job(job).n_events
            wait_for(lambda: len(seen) >= n_events)

        assert n_seen < n_events
        assert seen == list(range(1, n_events + 1))


@pytest.mark.in_ci
@pytest.mark.slow("30 s: two commands on PostgreSQL, one is stopped")
def test_a_command_that_was_stopped_for_longer_than_its_lease(
    postgres_url: str, tmp_path: Path
) -> None:
    """Another command takes the job, and the first one writes nothing any more."""
    settings = {"TUNER_ENGINE": toy.NAME, "TUNER_N_BUILDERS": "2", "TUNER_DATABASE": postgres_url}
    first, second = (Cli(tmp_path / name, settings) for name in ("first", "second"))
    for each in (first, second):
        each.folder.mkdir()
    sessions = open_sessions(postgres_url)
    process = first.start(*tune("4000"), TOY_RUN_SECS="0.3")
    wait_for(lambda: len(trials_of(sessions)) > 3)

    refused = second(*tune("4000"))
    assert refused.status == 1
    assert f"process {process.pid} on " in refused.complaint
    assert refused.complaint.endswith("is tuning job 1; wait for it to end")

    process.send_signal(signal.SIGSTOP)
    expire_leases(sessions)
    n_before = len(trials_of(sessions))
    answer = second(*tune(str(n_before + 8)), "--json")
    process.send_signal(signal.SIGCONT)
    stopped = finish(process, 60)

    assert answer.json["measured_now"] == 8
    assert stopped.status == 1
    assert "another process is tuning job 1 now" in stopped.complaint
    assert len(trials_of(sessions)) == n_before + 8
    with sessions() as session:
        assert session.get_one(Job, 1).state == "done"
    sessions.kw["bind"].dispose()
