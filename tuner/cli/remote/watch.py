"""Jobs of a server as they run: events trigger a reload of the table that is shown."""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from tuner.client import Event, ServiceError, TunerClient
from tuner.client.client import ENDED
from tuner.client.transport import call_until_available, is_transient
from tuner.errors import TunerError
from tuner.schemas import JobSummary, JobView

_REDRAW_INTERVAL_SECS = 0.5
_OUTAGE_TIMEOUT_SECS = 300.0

Show = Callable[[JobView], None]


@dataclass
class Watch:
    """Events and tables of jobs since they were submitted.

    Attributes:
        client: Client of the server.
        show: Function that receives the table of a job when it changed.
        first_trials: Time of the first trial of each job, seconds of the monotonic clock.
    """

    client: TunerClient
    show: Show
    first_trials: dict[int, float] = field(default_factory=dict)
    _arrived: "queue.Queue[tuple[int, Event | TunerError]]" = field(default_factory=queue.Queue)
    _last: dict[int, int] = field(default_factory=dict)

    def follow(self, jobs: Iterable[JobSummary]) -> None:
        """Watch jobs until all have ended.

        Raises:
            ServiceError: If the server stays unreachable.
        """
        running = {job.id for job in jobs if job.state not in ENDED}
        for job in jobs:
            self._last[job.id] = job.n_events
            if job.id in running:
                # One thread per job, because reading a stream blocks without a time limit.
                reader = threading.Thread(target=self._read, args=(job,), daemon=True)
                reader.start()
        changed: dict[int, None] = dict.fromkeys(running)
        drawn_at = 0.0
        while running:
            try:
                job_id, event = self._arrived.get(timeout=_REDRAW_INTERVAL_SECS)
                changed[job_id] = None
                if self._ends(job_id, event):
                    running.discard(job_id)
            except queue.Empty:
                pass
            if changed and time.monotonic() - drawn_at >= _REDRAW_INTERVAL_SECS:
                *_, newest = changed
                if self._draw(newest):
                    changed.clear()
                drawn_at = time.monotonic()

    def final(self, job: int) -> JobView:
        """Return the table of a job after the last event that arrived."""
        while True:
            view = call_until_available(partial(self.client.table, job), _OUTAGE_TIMEOUT_SECS)
            if view.job.n_events >= self._last.get(job, 0):
                return view
            time.sleep(_REDRAW_INTERVAL_SECS / 2)

    def _draw(self, job: int) -> bool:
        """Show a job; False while the server is unreachable, for which the event reader waits."""
        try:
            self.show(self.client.table(job))
        except ServiceError as error:
            if not is_transient(error):
                raise
            return False
        return True

    def _read(self, job: JobSummary) -> None:
        try:
            for event in self.client.events(job.id, job.n_events):
                self._arrived.put((job.id, event))
                if _is_end(event):
                    return
        except TunerError as error:
            self._arrived.put((job.id, error))

    def _ends(self, job: int, event: Event | TunerError) -> bool:
        if isinstance(event, TunerError):
            raise event
        self._last[job] = event.sequence
        if event.kind == "trial":
            self.first_trials.setdefault(job, time.monotonic())
        return _is_end(event)


def _is_end(event: Event) -> bool:
    return event.kind == "state" and event.data.get("state") in ENDED
