"""The whole service under one supervisor: its start, its repair and its end."""

import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from api import __main__ as api_main
from tests.forked import Process
from tests.service.rig import HOST, Rig, get, rig, serve
from tests.services import is_ready
from tests.waiting import wait_for
from tuner.errors import RequestError
from tuner.service import supervisor
from tuner.service.supervisor import Child, Program, Serving, check_port, programs


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Rig]:
    """A rig with an empty SQLite database."""
    with rig(f"sqlite:///{tmp_path / 'tuner.db'}", tmp_path, run_secs=0.02) as rigged:
        yield rigged


def descendants(process: Process) -> list[psutil.Process]:
    """Return all processes below one."""
    children: list[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
    return children


@pytest.mark.slow("20 s: processes start again")
def test_a_supervisor_restarts_what_is_killed_and_ends_all_processes(opened: Rig) -> None:
    """The API has a lower priority; it and the worker are restarted; SIGTERM ends them all."""
    job = opened.submit(trials=40)
    process, url = serve(opened)
    wait_for(lambda: opened.n_trials() >= 4)
    api = next(child for child in descendants(process) if "api" in child.cmdline())
    assert api.nice() == psutil.Process().nice() + 5
    assert get(url, f"/api/v1/jobs/{job}").json()["job"]["state"] == "running"

    psutil.Process(opened.active()[0]).kill()
    api.kill()

    wait_for(lambda: opened.state(job) == "done", 60.0)
    opened.check_counts(job)
    wait_for(lambda: is_ready(url))
    processes = descendants(process)
    process.terminate()
    assert process.wait(30.0) == 128 + signal.SIGTERM
    assert not psutil.wait_procs(processes, 30.0)[1]


def test_nothing_outlives_a_supervisor_that_is_killed(opened: Rig) -> None:
    """Neither its processes nor their workers remain."""
    process, _ = serve(opened)
    wait_for(opened.active)
    processes = descendants(process)
    assert len(processes) >= 4

    process.kill()

    assert not psutil.wait_procs(processes, 30.0)[1]


def test_the_api_alone_measures_nothing(opened: Rig) -> None:
    """A job of a service without a worker stays in the queue."""
    job = opened.submit(trials=0)
    _, url = serve(opened, "--api-only")

    assert get(url, f"/api/v1/jobs/{job}").json()["job"]["state"] == "queued"
    assert opened.active() == []


def test_a_port_in_use_is_reported(opened: Rig) -> None:
    """The command fails with one line, and starts nothing."""
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        process = opened.tuner("serve", "--port", str(port))
        assert process.wait(30.0) == 2

    assert f"cannot listen on {HOST}:{port}" in (opened.folder / "serve.0.log").read_text()
    with pytest.raises(RequestError, match="cannot listen on"):
        check_port("no such host.invalid", 1)


def test_a_supervisor_waits_for_running_requests() -> None:
    """Its grace period is longer than the time that running requests get to end."""
    assert api_main._SHUTDOWN_TIMEOUT_SECS + 2 <= supervisor._GRACE_SECS


def test_a_child_that_ends_is_restarted_with_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pauses are one, two and four seconds."""
    clock = [0.0]
    monkeypatch.setattr("tuner.service.supervisor.time.monotonic", lambda: clock[0])
    child = Child(Program("it", (sys.executable, "-c", "raise SystemExit(3)")))
    for wait in (1.0, 2.0, 4.0):
        child.poll()
        status = None
        deadline = time.time() + 20.0
        while status is None and time.time() < deadline:
            time.sleep(0.02)
            status = child.poll()
        assert status == 3
        clock[0] += wait - 0.5
        assert child.poll() is None
        assert child.has_ended()
        clock[0] += 0.5


def test_the_url_of_a_service_can_be_opened_in_a_browser() -> None:
    """An address that stands for all interfaces is replaced by that of the local one."""
    urls = [Serving(host, 80, (), None).url for host in ("0.0.0.0", "::", "localhost", "10.0.0.1")]

    assert urls == [
        "http://127.0.0.1:80",
        "http://[::1]:80",
        "http://localhost:80",
        "http://10.0.0.1:80",
    ]
    assert [program.nice for program in programs(Serving(HOST, 80, (), ()))] == [0, 5]
