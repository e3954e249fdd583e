"""End of a run whose budget in seconds is spent, whatever it waits for."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tuner.errors import OutOfTime, WorkerLost
from tuner.workers.pool import Pool

# Part of the budget after which a run is given up that still waits, for a device or a process to
# start. A final may take a twentieth.
_GRACE_SHARE = 0.06
# Duration of the end of a command, compared with that of its start, on an idle machine and on a
# busy one; and the largest share of a budget that is kept for it.
_END_PART = 0.3
_MAX_END_SHARE = 0.04


@dataclass(frozen=True)
class RunDeadline:
    """Time at which the seconds of a run end, from its start by the monotonic clock."""

    secs: float | None
    started: float

    @property
    def secs_left(self) -> float | None:
        """Seconds until then, at least 0; None without a limit."""
        return None if self.secs is None else max(self.started + self.secs - time.monotonic(), 0.0)

    @property
    def end_secs(self) -> float | None:
        """Seconds until a run is given up that still waits, at least 0; None without a limit."""
        left = self.secs_left
        return None if self.secs is None or left is None else left + _GRACE_SHARE * self.secs

    @contextmanager
    def limiting(self, worker: Pool) -> Iterator[Pool]:
        """Use a worker inside, and close it when time is up.

        Raises:
            OutOfTime: If time is up before the end.
        """
        self.check()
        timer = threading.Timer(self.secs_left or 0.0, worker.close)
        timer.daemon = True
        try:
            if self.secs is not None:
                timer.start()
            with worker:
                yield worker
        except WorkerLost as error:
            self.check(error)
            raise
        finally:
            timer.cancel()
        self.check()

    def check(self, cause: Exception | None = None) -> None:
        """Make sure that there is time left.

        Raises:
            OutOfTime: If there is not.
        """
        if self.secs is not None and not self.secs_left:
            raise OutOfTime(self.secs) from cause


def deadline_of(secs: float | None, started: float, start_secs: float) -> RunDeadline:
    """Return the deadline of a command that keeps time for its end.

    Args:
        secs: Budget of the command; None without a limit.
        started: Start of the command by the monotonic clock.
        start_secs: Seconds that it took until its work began.
    """
    end_secs = _END_PART * start_secs
    return RunDeadline(
        secs, started - (end_secs if secs is None else min(end_secs, _MAX_END_SHARE * secs))
    )
