"""Benchmarks against goals and peers; each module prints one JSON line."""

import os
from pathlib import Path

# Processes of a benchmark, and workers, find this package and get what sets its engines up.
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
_VARIABLES = (os.environ.get("TUNER_WORKER_ENVIRONMENT"), "NAP_SECS", "TOY_*")
os.environ["TUNER_WORKER_ENVIRONMENT"] = ",".join(filter(None, _VARIABLES))
