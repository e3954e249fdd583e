"""Election of the one process that coordinates, and the heartbeat of each process."""

import logging
import os
import secrets
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from records import database
from records.errors import LeaseLost, RecordsError
from records.models import now
from records.service import leases, workers
from records.service.leases import HeldLease
from tuner.errors import summary
from tuner.settings import DEFAULT_MAX_STALL_SECS
from tuner.workers.utilisation import UtilisationMeter

ROLE = leases.COORDINATOR
_HEARTBEAT_INTERVAL_SECS = leases.RENEWAL_INTERVAL_SECS
_STALLED_STATUS = 70  # EX_SOFTWARE of sysexits.h

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Activity:
    """Contents of the next heartbeat."""

    role: str = "standby"
    text: str = "starting"
    job_id: int | None = None
    device: dict[str, Any] = field(default_factory=dict)


def end_process() -> None:
    """Kill the processes that this one started, so that none of them measures, then end it.

    Threads that hang cannot be asked to, and the locks of devices end with the process.
    """
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.kill()
    os._exit(_STALLED_STATUS)


class CoordinatorLease:
    """Lease of the coordinator, which this process may hold, and the heartbeat of this process.

    Inside its context, a thread renews the lease and reports the process every few seconds. It is
    a thread because the event loop may be busy, or wait for a database, for longer than a lease
    lasts. But it renews the lease only while the main loop makes progress: one that hangs would
    otherwise keep every standby waiting. Then it ends the process, see :func:`end_process`.
    Methods may be called from any thread.

    Args:
        engine: The database.
        max_stall_secs: Time without progress after which the lease is given up.
        on_stall: Called instead of a renewal once the main loop has stalled.

    Attributes:
        host: Name of this machine.
        name: Name of this process, different from that of every other.
        meter: Measures the utilisation of the workers in the current role.
    """

    def __init__(
        self,
        engine: Engine,
        max_stall_secs: float = DEFAULT_MAX_STALL_SECS,
        on_stall: Callable[[], None] = end_process,
    ) -> None:
        self._sessions = database.sessions(engine)
        self._max_stall_secs = max_stall_secs
        self._on_stall = on_stall
        self._main_thread = threading.get_ident()
        self._progressed = time.monotonic()
        self._progress_due = self._progressed + max_stall_secs
        self._activity = _Activity()
        self._held: HeldLease | None = None
        self._is_lost = False
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.host = socket.gethostname()
        # Processes of two containers may have the same host name and process id.
        self.name = f"{self.host}:{os.getpid()}:{secrets.token_hex(4)}"
        self.meter = UtilisationMeter()

    def acquire(self) -> HeldLease | None:
        """Acquire the lease, to be renewed from now on; None if another process holds it."""
        with self._sessions.begin() as session:
            held = leases.acquire(session, ROLE, self.name, leases.LEASE_SECS)
        self.report_progress()
        with self._lock:
            self._held, self._is_lost = held, False
        return held

    def release(self) -> None:
        """Give up the lease, if it is held; without a database it expires."""
        with self._lock:
            held, self._held = self._held, None
        if held is None:
            return
        try:
            with self._sessions.begin() as session:
                leases.release(session, held)
        except SQLAlchemyError as error:
            _LOG.warning("cannot release the lease, it will expire: %s", summary(error))

    def check(self) -> None:
        """Make sure that no other process was seen to hold the lease.

        Raises:
            LeaseLost: If one was.
        """
        if self._is_lost:
            raise LeaseLost(f"another process is {ROLE} now")

    def report_progress(self, within_secs: float | None = None) -> None:
        """Note that the main loop runs.

        Args:
            within_secs: Time within which it will report again; None for that of the lease. A
                step outside of the loop may announce that it takes longer.
        """
        self._main_thread = threading.get_ident()
        self._progressed = time.monotonic()
        self._progress_due = self._progressed + (within_secs or self._max_stall_secs)

    def report_activity(self, job_id: int | None, text: str) -> None:
        """Set the activity that the next heartbeats report."""
        self._activity = replace(self._activity, job_id=job_id, text=text)

    def set_role(self, role: str, text: str, device: dict[str, Any] | None = None) -> None:
        """Change the role and the activity, and report them at once."""
        if role != self._activity.role:
            # Calls of workers that were killed never end for the old meter.
            self.meter = UtilisationMeter()
        self._activity = _Activity(role, text, None, device or {})
        self._report()

    def _run(self) -> None:
        while not self._stopping.wait(_HEARTBEAT_INTERVAL_SECS):
            self._renew()
            self._report()

    def _renew(self) -> None:
        with self._lock:
            held = self._held
        if held is None:
            return
        if time.monotonic() > self._progress_due:
            # Let the lease expire because the main loop hangs, and say where it does.
            frame = sys._current_frames().get(self._main_thread)
            _LOG.error(
                "the main loop made no progress for %.0f s: the lease is given up",
                time.monotonic() - self._progressed,
                extra={"stack": traceback.format_stack(frame) if frame is not None else []},
            )
            self._on_stall()
            return
        try:
            with self._sessions.begin() as session:
                renewed = leases.renew(session, held, leases.LEASE_SECS)
        except SQLAlchemyError as error:
            # The lease is held until another process acquires it; the next renewal may succeed.
            _LOG.warning("cannot renew the lease: %s", summary(error))
            return
        if not renewed and held == self._held:
            self._is_lost = True

    def _report(self) -> None:
        activity = self._activity
        started = max(self._progressed, self._progress_due - self._max_stall_secs)
        report = workers.WorkerReport(
            name=self.name,
            host=self.host,
            pid=os.getpid(),
            role=activity.role,
            activity=activity.text,
            device=activity.device,
            job_id=activity.job_id,
            busy_secs=self.meter.busy_secs,
            busy_share=self.meter.share(),
            progress=now() - timedelta(seconds=max(time.monotonic() - started, 0.0)),
        )
        try:
            with self._sessions.begin() as session:
                workers.report(session, report)
        except (SQLAlchemyError, RecordsError) as error:
            _LOG.warning("cannot report this process: %s", summary(error))

    def __enter__(self) -> Self:
        self._report()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self.release()
        try:
            with self._sessions.begin() as session:
                workers.stop(session, self.name)
        except SQLAlchemyError as failure:
            _LOG.warning("cannot report the end of this process: %s", summary(failure))
