"""A coordinator of two toy devices as a process, to be killed: ``DATABASE FOLDER TRIALS``.

Its workers are those of a Ray cluster, if ``TUNER_RAY_ADDRESS`` names one.
"""

import os
import sys
from pathlib import Path
from typing import cast

from tests.engines import toy
from tests.engines.toy_network import Workshop, open_sessions
from tuner.devices.runners.local import LocalRunner
from tuner.executors.base import Executor
from tuner.executors.local import LocalExecutor
from tuner.executors.ray.executor import RayExecutor
from tuner.settings import Settings


def main(url: str, folder: Path, trials: int) -> None:
    """Tune a network of four tasks; started again it goes on where it was."""
    with open_workers(folder) as executor:
        shop = Workshop(open_sessions(url), folder, cast("LocalExecutor", executor))
        print("ready", flush=True)
        shop.tune(shop.prepare(), trials, trials_per_round=6)


def open_workers(folder: Path) -> Executor:
    """Start two builders and two devices, or find them on the cluster."""
    settings = Settings("", folder, toy.NAME, 2, ray_address=os.environ.get("TUNER_RAY_ADDRESS"))
    if settings.ray_address is not None:
        return RayExecutor(settings)
    devices = [LocalRunner(settings, name, shares_cores=False) for name in ("a", "b")]
    return LocalExecutor(settings, runners=devices)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
