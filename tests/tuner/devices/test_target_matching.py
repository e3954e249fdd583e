"""Tests that a device describes targets of its own kind alone."""

import pytest

from tests.engines import toy
from tuner.devices import target_matching
from tuner.engines.base import TargetInfo


@pytest.mark.parametrize(("kind", "problem"), [("llvm", ""), ("cuda", "measured for cuda")])
def test_a_process_describes_targets_of_its_own_device_alone(kind: str, problem: str) -> None:
    """The process of a GPU refuses targets of the CPU, although it can run their code."""
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
def test_a_target_that_names_another_kind_is_refused_without_the_engine(
    spec: str, is_refused: bool
) -> None:
    """A target whose JSON names no known kind is left to the engine."""
    refusal = target_matching.refusal("cuda", spec)

    assert (refusal is not None) == is_refused
    assert refusal is None or "measured for cuda" in refusal.problem


def test_a_problem_of_the_engine_is_kept() -> None:
    """A problem that the engine reports is not replaced by a mismatch of kinds."""
    info = TargetInfo("{}", "cuda", {}, problem="there is no driver")

    assert target_matching.only_of("llvm", info) is info
