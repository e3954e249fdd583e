"""Curves to draw simulated tasks from, and a world that costs no time to work in."""

from pathlib import Path

import pytest

from scheduler.replay import Recording
from tests.tuner.cli.commands.conftest import ROOT
from tuner.replay import recording as recordings

CURVES: list[Path] = sorted((ROOT / "benchmarks" / "curves").glob("*.jsonl.gz"))


@pytest.fixture(scope="session")
def curves() -> list[Recording]:
    """The recordings in the repository."""
    return [recordings.read(path) for path in CURVES]
