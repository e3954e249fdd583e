"""Devices of this machine, each measured for its own kind of target."""

from pathlib import Path

from tests.engines import toy
from tuner.executors.factory import open_executor
from tuner.settings import Settings


def test_this_machine_measures_on_its_cpu(tmp_path: Path) -> None:
    """Its runner is named local, shares its cores with builders, and knows its target."""
    with open_executor(Settings("", tmp_path, toy.NAME, 1)) as executor:
        runner = next(each for each in executor.runners if each.shares_cores)
        info = runner.describe("llvm").result()

    assert (runner.name, info.problem) == ("local", "")
