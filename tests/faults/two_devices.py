"""A coordinator of two toy devices as a process that is killed: ``DATABASE FOLDER TRIALS``."""

import sys
from pathlib import Path

from tests.engines import toy
from tests.engines.toy_network import Workshop, open_sessions
from tuner.devices.runners.local import LocalRunner
from tuner.executors.local import LocalExecutor
from tuner.settings import Settings


def main() -> None:
    """Tune a network of four tasks; started again it goes on where it was."""
    url, folder, trials = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    settings = Settings("", folder, toy.NAME, 2)
    devices = [LocalRunner(settings, name, shares_cores=False) for name in ("a", "b")]
    with LocalExecutor(settings, runners=devices) as executor:
        shop = Workshop(open_sessions(url), folder, executor)
        print("ready", flush=True)
        shop.tune(shop.prepare(), trials, trials_per_round=6)
