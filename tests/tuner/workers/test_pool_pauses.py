"""Workers that start while their pool is paused."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.cli import ROOT
from tests.waiting import has_ended, wait_for
from tuner.workers.base import CallTimeout
from tuner.workers.pool import Pool, WorkerSettings

HELPERS = "tests.tuner.executors.helpers"


def test_a_paused_worker_that_starts_dies_with_a_killed_parent(tmp_path: Path) -> None:
    """Stopped before it asks for that, it would stay for ever."""
    script = tmp_path / "coordinator.py"
    script.write_text(
        "import os, pathlib, signal, sys\n"
        "from tuner.workers.pool import Pool, WorkerSettings\n"
        "pool = Pool(WorkerSettings(1, pathlib.Path(sys.argv[1]) / 'worker.log'))\n"
        f"pool.submit('{HELPERS}', 'hang')\n"
        "while not pool.process_ids:\n"
        "    pass\n"
        "pool.pause()\n"
        "print(*pool.process_ids, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    process_id = int(done.stdout)
    try:
        wait_for(lambda: has_ended(process_id))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)


def test_a_worker_that_starts_in_a_pause_waits_for_its_end(tmp_path: Path) -> None:
    """It stops once it is set up, and goes on with its call after it."""
    marker = tmp_path / "marker"
    with Pool(WorkerSettings(1, tmp_path / "worker.log")) as pool:
        # The call may begin before the pause, but does not end.
        call = pool.submit(HELPERS, "wait_for_file", str(marker), timeout_secs=60.0)
        wait_for(lambda: bool(pool.process_ids))
        pool.pause()
        wait_for(lambda: psutil.Process(pool.process_ids[0]).status() == psutil.STATUS_STOPPED)

        pool.resume()
        marker.touch()
        assert call.result() == "made"


def test_a_pause_does_not_count_against_the_time_limit_of_a_call(tmp_path: Path) -> None:
    """A call that is stopped for longer than its limit goes on, and ends within it later."""
    marker = tmp_path / "marker"
    with Pool(WorkerSettings(1, tmp_path / "worker.log")) as pool:
        pool.call(HELPERS, "whoami")
        call = pool.submit(HELPERS, "wait_for_file", str(marker), timeout_secs=2.0)
        time.sleep(0.2)
        pool.pause()
        time.sleep(3.0)
        assert not call.future.done()

        pool.resume()
        marker.touch()
        assert call.result() == "made"


def test_a_call_times_out_after_a_pause(tmp_path: Path) -> None:
    """The pause is added to its limit, and nothing more."""
    with Pool(WorkerSettings(1, tmp_path / "worker.log")) as pool:
        pool.call(HELPERS, "whoami")
        call = pool.submit(HELPERS, "hang", timeout_secs=0.5)
        pool.pause()
        time.sleep(1.0)
        pool.resume()
        resumed = time.monotonic()

        with pytest.raises(CallTimeout):
            call.result()
        assert time.monotonic() - resumed < 10.0
