"""End of a run whose budget in seconds is spent, whatever it waits for."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tuner.errors import WorkerLost, WorkError
from tuner.workers.pool import Pool

# Part of the budget after which a run is given up that still waits, for a device or a process to
# start. A final may take a twentieth.
_GRACE_SHARE = 0.06


def out_of_time(secs: float) -> WorkError:
    """Return the error of a run whose budget in seconds ended before its first trial."""
    return WorkError(
        f"the {secs:g} s of the budget ended before the first trial; what was prepared is kept: "
        "run the command again, with more seconds if that repeats"
    )


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
            WorkError: If time is up before the end.
        """
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
            WorkError: If there is not.
        """
        if self.secs is not None and not self.secs_left:
            raise out_of_time(self.secs) from cause
