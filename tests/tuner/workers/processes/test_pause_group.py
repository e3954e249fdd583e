"""Pools that pause together."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.tuner.executors import helpers
from tests.waiting import wait_for
from tuner.workers.pool import Pool, WorkerSettings
from tuner.workers.processes.pause_group import PauseGroup


@pytest.fixture
def group() -> PauseGroup:
    """A group without pools."""
    return PauseGroup()


@pytest.fixture
def pool(group: PauseGroup, tmp_path: Path) -> Iterator[Pool]:
    """A pool of one worker in the group."""
    with group.collecting():
        opened = Pool(WorkerSettings(1, tmp_path / "worker.log"))
    with opened:
        yield opened


def status_of(pid: int) -> str:
    """Read the state of a process once it has settled."""
    time.sleep(0.1)
    return str(psutil.Process(pid).status())


def test_a_paused_worker_uses_no_core_and_then_continues(group: PauseGroup, pool: Pool) -> None:
    """A call that is running when its group pauses ends after the group resumes."""
    pid = pool.call(helpers.NAME, "whoami")
    call = pool.submit(helpers.NAME, "hang", 0.3)
    time.sleep(0.1)

    group.pause()

    assert status_of(pid) == psutil.STATUS_STOPPED
    time.sleep(0.5)
    assert not call.future.done()
    group.resume()
    call.result()
    assert status_of(pid) != psutil.STATUS_STOPPED


def test_processes_that_a_worker_started_pause_with_it(group: PauseGroup, pool: Pool) -> None:
    """A linker or compiler below a worker uses no core either."""
    worker = psutil.Process(pool.call(helpers.NAME, "whoami"))
    pool.submit(helpers.NAME, "run_sleeper", 60.0)
    (child,) = _wait_for_children(worker, "time.sleep")

    group.pause()
    paused = [status_of(worker.pid), status_of(child.pid)]
    group.resume()

    assert paused == [psutil.STATUS_STOPPED] * 2
    assert status_of(child.pid) != psutil.STATUS_STOPPED


def test_a_paused_group_starts_no_calls(group: PauseGroup, pool: Pool) -> None:
    """A thread that submits a call waits until the group resumes."""
    pids: list[int] = []
    thread = threading.Thread(target=lambda: pids.append(pool.call(helpers.NAME, "whoami")))
    group.pause()

    thread.start()
    thread.join(0.3)
    assert not pids
    group.resume()
    thread.join()

    assert len(pids) == 1


def test_a_paused_pool_can_be_closed(group: PauseGroup, pool: Pool) -> None:
    """Its workers are killed, and what they started does not stay stopped for ever."""
    worker = psutil.Process(pool.call(helpers.NAME, "whoami"))
    pool.submit(helpers.NAME, "run_sleeper", 60.0)
    (child,) = _wait_for_children(worker, "time.sleep")
    group.pause()

    pool.close()

    wait_for(lambda: not worker.is_running())
    assert status_of(child.pid) != psutil.STATUS_STOPPED
    child.kill()


def test_pools_outside_a_group_do_not_pause(group: PauseGroup, tmp_path: Path) -> None:
    """Builders and runners of a coordinator belong to no group."""
    with Pool(WorkerSettings(1, tmp_path / "worker.log")) as other:
        group.pause()

        assert other.call(helpers.NAME, "add", 2, 3) == 5


def _wait_for_children(process: psutil.Process, word: str) -> list[psutil.Process]:
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        children = [
            child for child in process.children() if any(word in part for part in child.cmdline())
        ]
        if children:
            return children
        time.sleep(0.05)
    raise AssertionError(f"no child with {word}")
