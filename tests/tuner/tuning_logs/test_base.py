"""Skipped lines are counted in little memory."""

from tuner.tuning_logs.base import Skips


def test_lines_are_counted_by_their_reason() -> None:
    """Each reason has its count and its first line."""
    skips = Skips()
    for number in (4, 2, 9):
        skips.add(number, "it is\n  not JSON")

    assert skips.reasons == {"it is not JSON": (3, 2)}


def test_a_million_reasons_take_little_memory() -> None:
    """The first reasons are kept, and all lines are counted."""
    skips = Skips()
    for number in range(1, 1001):
        skips.add(number, f"reason {number} {'x' * 1000}")

    assert len(skips.reasons) == 51
    assert skips.reasons["other reasons"] == (950, 51)
    assert skips.n_lines == 1000
