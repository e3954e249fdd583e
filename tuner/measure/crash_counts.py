"""Quarantine of candidates under which devices were lost."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from tuner.engines.base import RunResult
from tuner.errors import DeviceLost

_MAX_LOSSES = 2
QUARANTINE_REASON = f"{_MAX_LOSSES} devices were lost while they ran it; it is not run again"
QUARANTINED = RunResult(error_kind="worker_lost", error_text=QUARANTINE_REASON)


class CrashCounts:
    """Losses of devices by task and trace, over all rounds of a coordinator.

    A candidate that is blamed for two losses is quarantined, so that it cannot take one device
    after the other away.
    """

    def __init__(self) -> None:
        self._losses: dict[tuple[int, str], float] = defaultdict(float)

    def blame(self, task_id: int, trace: str, share: float = 1.0) -> None:
        """Blame a candidate for a share, from 0 to 1, of the loss of a device."""
        self._losses[task_id, trace] += share

    def is_quarantined(self, task_id: int, trace: str) -> bool:
        """Return whether a candidate must not run again."""
        return self._losses.get((task_id, trace), 0.0) >= _MAX_LOSSES

    @contextmanager
    def blame_on_device_loss(self, task_id: int, trace: str) -> Iterator[None]:
        """Blame a candidate if the device is lost inside."""
        try:
            yield
        except DeviceLost:
            self.blame(task_id, trace)
            raise
