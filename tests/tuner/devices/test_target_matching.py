"""Targets are for devices of one kind."""

import pytest

from tests.engines import toy
from tuner.devices import target_matching
from tuner.engines.base import TargetInfo


@pytest.mark.parametrize(("kind", "problem"), [("llvm", ""), ("cuda", "measured for cuda")])
def test_a_process_speaks_for_its_own_device_alone(kind: str, problem: str) -> None:
    """One that times on a GPU runs code for the CPU too, which is another process's."""
    info = target_matching.describe(toy.NAME, kind, toy.SPEC)

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
    refused = target_matching.refusal("cuda", spec)

    assert (refused is not None) == is_refused
    assert refused is None or "measured for cuda" in refused.problem


def test_a_problem_that_is_known_is_kept() -> None:
    """It says more than that the device is another one."""
    info = TargetInfo("{}", "cuda", {}, problem="there is no driver")

    assert target_matching.only_of("llvm", info) is info
