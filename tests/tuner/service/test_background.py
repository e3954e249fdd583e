"""Work beside measurements ends with its processes."""

import asyncio
import threading
from pathlib import Path

import psutil
import pytest

from tests.tuner.executors import helpers
from tuner.devices.cpu_gate import CpuGate
from tuner.errors import WorkerLost
from tuner.service.background import run_beside_measurements
from tuner.workers.pool import Pool, WorkerSettings


@pytest.mark.parametrize("end", ["unwanted", "error", "cancelled"])
def test_its_processes_end_once_nobody_wants_the_result(tmp_path: Path, end: str) -> None:
    """Also where that cannot be looked up, or the caller is cancelled."""
    workers: list[psutil.Process] = []
    is_running = threading.Event()

    def work() -> None:
        with Pool(WorkerSettings(1, tmp_path / "worker.log")) as pool:
            workers.append(psutil.Process(pool.call(helpers.NAME, "whoami")))
            is_running.set()
            pool.call(helpers.NAME, "hang", 600.0)

    def is_wanted() -> bool:
        assert is_running.wait(60)
        if end == "error":
            raise ConnectionError("the database left")
        return end == "cancelled"

    async def serve() -> None:
        running = asyncio.ensure_future(run_beside_measurements(CpuGate(), work, "x", is_wanted))
        if end == "cancelled":
            await asyncio.to_thread(is_running.wait, 60)
            running.cancel()
        await running

    errors = {"unwanted": WorkerLost, "error": ConnectionError, "cancelled": asyncio.CancelledError}
    with pytest.raises(errors[end]):
        asyncio.run(serve())
    workers[0].wait(20)
