"""Pools with workers in two environments."""

import os
import signal
import time
from pathlib import Path

from tests.tuner.executors.helpers import NAME as HELPERS
from tuner.networks.base import LoadedModel
from tuner.workers.factory import SplitEnvPool
from tuner.workers.pool import WorkerSettings


def test_death_of_an_engine_worker_leaves_the_other_environment_alone(tmp_path: Path) -> None:
    """Calls in the tuner's own environment go on."""
    settings = WorkerSettings(1, tmp_path / "worker.log")
    with SplitEnvPool(settings, settings) as pool:
        worker = pool.call(HELPERS, "whoami")
        loading = pool.submit(
            "tuner.networks.worker",
            "load_model",
            "zoo:mlp",
            {},
            None,
            str(tmp_path),
            returns=LoadedModel,
        )
        os.kill(worker, signal.SIGKILL)
        time.sleep(0.5)

        assert pool.call(HELPERS, "add", 1, 2) == 3
        assert loading.result().name == "mlp"
