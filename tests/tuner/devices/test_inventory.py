"""Tests of the devices of this machine."""

from pathlib import Path

from tests.engines import toy
from tuner.executors.factory import open_executor
from tuner.settings import Settings


def test_this_machine_measures_on_its_cpu(tmp_path: Path) -> None:
    """The CPU's runner is named local, shares its cores with builders and describes llvm."""
    with open_executor(Settings("", tmp_path, toy.NAME, 1)) as executor:
        runner = next(runner for runner in executor.runners if runner.shares_cores)
        info = runner.describe("llvm").result()

    assert (runner.name, info.problem) == ("local", "")
