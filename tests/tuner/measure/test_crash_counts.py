"""Tests of the quarantine of candidates under which devices were lost."""

from typing import TYPE_CHECKING

import pytest

from records.measure_records import trace_hash
from tuner.errors import DeviceFull, DeviceLost, WorkerLost
from tuner.measure.crash_counts import CrashCounts

if TYPE_CHECKING:
    from records.tuning.suspects import Blame


@pytest.mark.parametrize(
    ("shares", "expected"),
    [([], False), ([1.0], False), ([1.0, 0.5], False), ([1.0, 1.0], True), ([0.5] * 4, True)],
)
def test_blame_for_two_devices_is_a_quarantine(shares: list[float], expected: bool) -> None:
    """Shares of the blame add up, for one trace of one task."""
    counts = CrashCounts()

    for share in shares:
        counts.blame(1, "trace", share)

    assert counts.is_quarantined(1, "trace") == expected
    assert not counts.is_quarantined(2, "trace")
    assert not counts.is_quarantined(1, "other")


@pytest.mark.parametrize(
    ("error", "expected"), [(DeviceLost, True), (DeviceFull, False), (WorkerLost, False)]
)
def test_only_the_loss_of_a_device_is_blamed(error: type[WorkerLost], expected: bool) -> None:
    """Neither a lost worker nor a full disk counts; the error is raised in either case."""
    counts = CrashCounts()

    for _ in range(2):
        with pytest.raises(error), counts.blame_on_device_loss(1, "trace"):
            raise error("lost")

    assert counts.is_quarantined(1, "trace") == expected


def test_losses_are_known_to_the_next_coordinator() -> None:
    """The blames of two coordinators add up to a quarantine."""
    blames: list[Blame] = []
    CrashCounts(on_blame=blames.append).blame(1, "trace")
    losses = {(task_id, name): share for task_id, name, share in blames}

    counts = CrashCounts(losses)
    assert not counts.is_quarantined(1, "trace")
    counts.blame(1, "trace")
    assert counts.is_quarantined(1, "trace")
    assert losses == {(1, trace_hash("trace")): 1.0}
