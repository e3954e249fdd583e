"""Quarantine of candidates under which devices were lost."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from records.measure_records import trace_hash
from records.tuning.suspects import Blame
from tuner.engines.base import RunResult
from tuner.errors import DeviceFull, DeviceLost

_MAX_LOSSES = 2
QUARANTINE_REASON = f"{_MAX_LOSSES} devices were lost while they ran it; it is not run again"
QUARANTINED = RunResult(error_kind="worker_lost", error_text=QUARANTINE_REASON)


class CrashCounts:
    """Losses of devices by task and trace, over all rounds of all coordinators.

    A candidate that is blamed for two losses is quarantined, so that it cannot take one device
    after the other away.

    Args:
        losses: Losses that are known, by task and hash of the trace.
        on_blame: Receives each further blame, to store it.
    """

    def __init__(
        self,
        losses: Mapping[tuple[int, str], float] | None = None,
        on_blame: Callable[[Blame], None] = lambda _blame: None,
    ) -> None:
        self._losses = dict(losses or {})
        self._on_blame = on_blame

    def blame(self, task_id: int, trace: str, share: float = 1.0) -> None:
        """Blame a candidate for a share, from 0 to 1, of the loss of a device."""
        blame = Blame(task_id, trace_hash(trace), share)
        key = (task_id, blame.trace_hash)
        self._losses[key] = self._losses.get(key, 0.0) + share
        self._on_blame(blame)

    def is_quarantined(self, task_id: int, trace: str) -> bool:
        """Return whether a candidate must not run again."""
        return self._losses.get((task_id, trace_hash(trace)), 0.0) >= _MAX_LOSSES

    @contextmanager
    def blame_on_device_loss(self, task_id: int, trace: str) -> Iterator[None]:
        """Blame a candidate if the device is lost inside, unless its disk is full."""
        try:
            yield
        except DeviceLost as error:
            if not isinstance(error, DeviceFull):
                self.blame(task_id, trace)
            raise
