"""Devices of this machine, each measured for its own kind of target."""

from pathlib import Path

import pytest

from tests.engines import toy
from tuner import inventory
from tuner.config import Settings
from tuner.engines.base import TargetInfo
from tuner.executors.opening import open_executor


@pytest.mark.parametrize(("kind", "problem"), [("llvm", ""), ("cuda", "measured for cuda")])
def test_a_process_speaks_for_its_own_device_alone(kind: str, problem: str) -> None:
    """One that times on a GPU runs code for the CPU too, which is another process's."""
    info = inventory.describe(toy.NAME, kind, toy.SPEC)

    assert info.device == {"name": "toy"}
    assert problem in info.problem
    assert bool(info.problem) == bool(problem)


@pytest.mark.parametrize(
    ("spec", "is_refused"),
    [
        ('{"kind":"llvm"}', True),
        ('{"kind":"cuda"}', False),
        ("llvm", False),
        ("[1]", False),
        (toy.SPEC, False),
        ('{"kind":[]}', False),
    ],
)
def test_a_target_that_names_another_kind_is_refused_unasked(spec: str, is_refused: bool) -> None:
    """What only the engine can read is asked of the engine."""
    refused = inventory.refusal("cuda", spec)

    assert (refused is not None) == is_refused
    assert refused is None or "measured for cuda" in refused.problem


def test_a_problem_that_is_known_is_kept() -> None:
    """It says more than that the device is another one."""
    info = TargetInfo("{}", "cuda", {}, problem="there is no driver")

    assert inventory.only_of("llvm", info) is info


def test_this_machine_measures_on_its_cpu(tmp_path: Path) -> None:
    """Its runner is named local, shares its cores with builders, and knows its target."""
    with open_executor(Settings("", tmp_path, toy.NAME, 1)) as executor:
        runner = next(each for each in executor.runners if each.shares_cores)
        info = runner.describe("llvm").result()

    assert (runner.name, info.problem) == ("local", "")
