"""Tests of the devices that are outliers."""

import math

import pytest

from tuner.devices.calibration.state import find_disagreements

INF = math.inf


@pytest.mark.parametrize(
    ("secs", "expected"),
    [
        ({}, {}),
        ({"a": 5.0}, {}),
        ({"a": 5.0, "b": 5.2}, {}),
        # Of two that disagree, the faster is right.
        ({"a": 5.6, "b": 5.0}, {"a": 1.12}),
        # Two slow ones outnumber a fast one.
        ({"a": 5.0, "b": 6.0, "c": 6.1}, {"a": 5.0 / 6.1}),
        ({"a": 5.0, "b": 5.1, "c": 15.0}, {"c": 3.0}),
        # A chain: the ends disagree, and the group without the slow end is the faster one.
        ({"a": 1.00, "b": 1.04, "c": 1.08}, {"c": 1.08}),
        ({"a": 1.0, "b": 1.0, "c": 2.0, "d": 2.0}, {"c": 2.0, "d": 2.0}),
        # A kernel that fails everywhere says nothing about the devices.
        ({"a": INF, "b": INF}, {}),
        ({"a": INF, "b": INF, "c": 5.0}, {"a": INF, "b": INF}),
    ],
)
def test_those_outside_the_largest_group_disagree(
    secs: dict[str, float], expected: dict[str, float]
) -> None:
    """The ratio compares a device with the nearest of the largest group."""
    disagreements = find_disagreements(secs, 0.05)

    ratios = {name: disagreement.ratio for name, disagreement in disagreements.items()}
    assert ratios == pytest.approx(expected)


def test_a_reason_names_the_peer_and_both_times() -> None:
    """The reason compares the times in milliseconds."""
    disagreements = find_disagreements(
        {"gpu0": 5.0e-3, "gpu1": 5.6e-3, "gpu2": 5.1e-3, "x": 4e-3}, 0.05
    )

    assert disagreements["gpu1"].reason == "12 % slower than gpu0 (calibration 5.6 against 5 ms)"
    assert disagreements["x"].reason == "22 % faster than gpu2 (calibration 4 against 5.1 ms)"
