"""Worker processes: time-outs, deaths, output, and the pool after each of them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from multiprocessing import spawn
from pathlib import Path

import psutil
import pytest

from tests.cli import ROOT
from tests.tuner.executors import helpers
from tuner.errors import OutOfMemory, RequestError, WorkerLost, WorkError
from tuner.workers.pool import CallTimeout, Pool, WorkerSettings

HELPERS = helpers.NAME


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """A pool of one worker."""
    with Pool(WorkerSettings(1, tmp_path / "logs" / "worker.log", {"FROM_POOL": "yes"})) as opened:
        yield opened


def test_call_returns_what_the_function_returns(pool: Pool) -> None:
    """Arguments reach the worker, and the result comes back."""
    assert pool.call(HELPERS, "add", 2, 3) == 5
    assert len(pool.call(HELPERS, "large", 5_000_000)) == 5_000_000


def test_worker_is_another_process_and_stays_warm(pool: Pool) -> None:
    """One other process serves call after call."""
    pids = {pool.call(HELPERS, "whoami") for _ in range(3)}

    assert len(pids) == 1
    assert os.getpid() not in pids
    assert [pool.call(HELPERS, "count") for _ in range(3)] == [1, 2, 3]


def test_environment_is_set_in_workers_only(pool: Pool) -> None:
    """The variables of a pool do not leak into the coordinator."""
    assert pool.call(HELPERS, "environ", "FROM_POOL") == "yes"
    assert "FROM_POOL" not in os.environ


def test_the_kernel_would_kill_a_worker_before_its_coordinator(pool: Pool) -> None:
    """Linux chooses the process with the highest score when memory runs out."""
    path = "/proc/self/oom_score_adj"

    assert int(pool.call(HELPERS, "read_text", path)) > int(helpers.read_text(path))


def test_exception_of_the_function_is_raised(pool: Pool) -> None:
    """An error keeps its name and text, and the worker lives on."""
    before = pool.call(HELPERS, "whoami")

    with pytest.raises(WorkError, match="LookupError: the reason"):
        pool.call(HELPERS, "fail", "the reason")
    assert pool.call(HELPERS, "whoami") == before


def test_tuner_error_keeps_its_type(pool: Pool) -> None:
    """An error that the tuner raises on purpose comes back unchanged, exit status included."""
    with pytest.raises(RequestError, match=r"^not like this$"):
        pool.call(HELPERS, "refuse", "not like this")


def test_timeout_kills_and_replaces(pool: Pool) -> None:
    """A call that takes too long ends, even if it ignores SIGTERM; the next one is served."""
    before = pool.call(HELPERS, "whoami")

    with pytest.raises(CallTimeout):
        pool.call(HELPERS, "hang", timeout_secs=0.2)

    assert pool.call(HELPERS, "whoami") != before
    assert not psutil.pid_exists(before)


def test_timeout_counts_from_when_a_worker_takes_the_call(pool: Pool) -> None:
    """The time a call waits behind others does not count."""
    slow = [pool.submit(HELPERS, "hang", 0.4, timeout_secs=5.0) for _ in range(3)]
    last = pool.submit(HELPERS, "add", 1, 1, timeout_secs=1.0)

    assert [call.result() for call in slow] == [None] * 3
    assert last.result() == 2


@pytest.mark.parametrize(
    ("number", "crashed"),
    [
        (signal.SIGSEGV, True),
        (signal.SIGABRT, True),
        (signal.SIGFPE, True),
        (signal.SIGKILL, False),
        (signal.SIGTERM, False),
    ],
)
def test_death_is_reported_with_its_signal(
    pool: Pool, number: signal.Signals, crashed: bool
) -> None:
    """The error names the signal and says whether the worker crashed; the worker is replaced."""
    with pytest.raises(WorkerLost, match=number.name) as caught:
        pool.call(HELPERS, "die", int(number))

    assert caught.value.crashed is crashed
    assert pool.call(HELPERS, "add", 1, 2) == 3


def test_exit_of_a_worker_is_reported_with_its_status(pool: Pool) -> None:
    """A library that calls exit() loses its worker, not the pool."""
    with pytest.raises(WorkerLost, match="status 3"):
        pool.call(HELPERS, "leave", 3)

    assert pool.call(HELPERS, "add", 1, 2) == 3


def test_exit_with_status_zero_is_reported_too(pool: Pool) -> None:
    """A worker that exits in the middle of a call loses it, at the latest when its time is over."""
    with pytest.raises((WorkerLost, CallTimeout)):
        pool.call(HELPERS, "leave", 0, timeout_secs=2.0)

    assert pool.call(HELPERS, "add", 1, 2) == 3


def test_retired_worker_answers_and_is_replaced(pool: Pool) -> None:
    """Its answer arrives, the next call is lost before it begins, and the one after is served."""
    before = pool.call(HELPERS, "retire")

    with pytest.raises(WorkerLost, match="status 75") as caught:
        pool.call(HELPERS, "add", 1, 2)

    assert not caught.value.crashed
    assert pool.call(HELPERS, "add", 1, 2) == 3
    assert pool.call(HELPERS, "whoami") != before


def test_idle_worker_that_is_killed_is_replaced(pool: Pool) -> None:
    """Killing an idle worker costs no call."""
    for _ in range(3):
        worker = psutil.Process(pool.call(HELPERS, "whoami"))
        worker.kill()
        _wait(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)  # noqa: B023
        time.sleep(0.5)
        assert pool.call(HELPERS, "add", 1, 2) == 3


def test_call_made_while_its_idle_worker_dies_is_served_or_lost(pool: Pool) -> None:
    """Either way it ends soon, and the call that repeats it is served."""
    for _ in range(5):
        worker = psutil.Process(pool.call(HELPERS, "whoami"))
        worker.kill()
        call = pool.submit(HELPERS, "add", 1, 2, timeout_secs=20.0)
        assert futures.wait([call.future], 40).done, "the call is neither served nor lost"
        with contextlib.suppress(WorkerLost):
            assert call.result() == 3
        assert pool.call(HELPERS, "add", 1, 2, timeout_secs=20.0) == 3


def test_one_of_several_workers_is_killed_in_a_batch(tmp_path: Path) -> None:
    """Only the call in the killed worker is lost."""
    with Pool(WorkerSettings(2, tmp_path / "worker.log")) as pool:
        marker = tmp_path / "died"
        calls = [pool.submit(HELPERS, "add", i, i) for i in range(20)]
        calls.insert(5, pool.submit(HELPERS, "die_once", str(marker)))
        calls += [pool.submit(HELPERS, "add", i, i) for i in range(20)]
        lost = 0
        for call in calls:
            try:
                call.result()
            except WorkerLost:
                lost += 1
        assert lost == 1
        assert pool.call(HELPERS, "die_once", str(marker)) == "alive"


@pytest.mark.parametrize("function", ["unpicklable", "unreadable"])
def test_result_that_cannot_be_pickled_or_read_is_an_error(pool: Pool, function: str) -> None:
    """The call raises WorkError, and the next call is served."""
    with pytest.raises(WorkError):
        pool.call(HELPERS, function, timeout_secs=10.0)

    assert pool.call(HELPERS, "add", 1, 2) == 3


def test_pool_that_lost_its_calls_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that no worker will ever answer is reported lost, and the next one is served."""
    with Pool(WorkerSettings(1, tmp_path / "worker.log", stall_timeout_secs=0.5)) as pool:
        # The state of a call whose worker was killed at the moment it took the call.
        monkeypatch.setattr(pool._pool, "schedule", lambda *_, **__: futures.Future())

        with pytest.raises(WorkerLost, match="took"):
            pool.call(HELPERS, "add", 1, 2, timeout_secs=0.5)

        assert pool.call(HELPERS, "add", 1, 2) == 3


def test_output_of_workers_goes_to_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No output of a worker reaches stdout or stderr of the coordinator."""
    log = tmp_path / "logs" / "worker.log"
    with Pool(WorkerSettings(1, log)) as pool:
        pool.call(HELPERS, "chatter", "here")

    assert capfd.readouterr() == ("", "")
    written = log.read_text()
    for source in ("python", "error", "descriptor", "child"):
        assert f"{source} here" in written


def test_close_ends_workers_in_the_middle_of_a_call(tmp_path: Path) -> None:
    """A pool that is closed leaves no process, busy or idle."""
    with Pool(WorkerSettings(2, tmp_path / "worker.log")) as pool:
        pids = {pool.call(HELPERS, "whoami") for _ in range(8)}
        pool.submit(HELPERS, "hang", 60.0)
        pool.submit(HELPERS, "whoami")

    _wait(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_workers_die_with_a_killed_parent(tmp_path: Path) -> None:
    """A kill -9 of the coordinator leaves no orphan, busy or idle."""
    program = (
        "import sys, pathlib, time\n"
        "from tuner.workers.pool import Pool, WorkerSettings\n"
        "if __name__ == '__main__':\n"
        "    pool = Pool(WorkerSettings(2, pathlib.Path(sys.argv[1]) / 'worker.log'))\n"
        f"    pool.submit('{HELPERS}', 'hang')\n"
        f"    print(pool.call('{HELPERS}', 'whoami'), flush=True)\n"
        "    time.sleep(600)\n"
    )
    script = tmp_path / "coordinator.py"
    script.write_text(program)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    process.stdout.close()

    assert len(workers) >= 2
    _wait(lambda: not any(worker.is_running() for worker in workers))


def test_pool_that_is_not_closed_lets_its_process_end(tmp_path: Path) -> None:
    """A program that forgets its pool ends, and its workers with it."""
    program = (
        "import pathlib, sys\n"
        "from tuner.workers.pool import Pool, WorkerSettings\n"
        "pool = Pool(WorkerSettings(1, pathlib.Path(sys.argv[1])))\n"
        f"print(pool.call('{HELPERS}', 'whoami'))\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "worker.log")],
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert not psutil.pid_exists(int(ended.stdout))


def test_importing_workers_leaves_multiprocessing_as_it_is() -> None:
    """Processes that other packages spawn start as Python starts them."""
    functions = (spawn.get_executable, spawn.get_command_line, spawn.get_preparation_data)

    assert {function.__module__ for function in functions} == {spawn.__name__}


def _wait(condition: Callable[[], bool], limit_secs: float = 30.0) -> None:
    deadline = time.monotonic() + limit_secs
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def test_call_that_needs_too_much_memory_fails_alone(tmp_path: Path) -> None:
    """The call raises OutOfMemory; its process stays within the limit and serves the next call."""
    settings = WorkerSettings(1, tmp_path / "worker.log", max_bytes=512 << 20)
    with Pool(settings) as pool:
        with pytest.raises(OutOfMemory, match="allocate needs more memory than it may have"):
            pool.call(HELPERS, "allocate", 1 << 30)

        assert pool.call(HELPERS, "allocate", 1 << 20) == 1 << 20
