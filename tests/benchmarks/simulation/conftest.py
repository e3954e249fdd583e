"""Recorded curves, and a simulated world without the cost of the coordinator's work."""

from pathlib import Path

import pytest

from scheduler.replay import Recording
from tests.cli import ROOT
from tuner.job_replay import recording as recordings

CURVES: list[Path] = sorted((ROOT / "benchmarks" / "curves").glob("*.jsonl.gz"))


@pytest.fixture(scope="session")
def curves() -> list[Recording]:
    """Return the recordings in the repository."""
    return [recordings.read(path) for path in CURVES]
