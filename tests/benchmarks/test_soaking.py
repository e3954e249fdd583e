"""The soak test finds the processes that it kills and watches."""

import os
from pathlib import Path

from benchmarks.soaking.faults import by_role
from tuner.workers.pool import Pool, WorkerSettings


def test_workers_are_found(tmp_path: Path) -> None:
    """The processes of a pool are those that are killed as children."""
    others = {worker.pid for worker in by_role(os.getpid()).get("child", [])}
    with Pool(WorkerSettings(1, tmp_path / "worker.log")) as pool:
        process_id = pool.call("os", "getpid")

        children = {worker.pid for worker in by_role(os.getpid()).get("child", [])}
    assert children - others == {process_id}
