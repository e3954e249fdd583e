"""Election of the one process that coordinates, and the heartbeat of each process."""

import logging
import os
import secrets
import socket
import threading
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from records import database, leases, workers
from records.errors import LeaseLost, RecordsError
from records.leases import HeldLease
from tuner.errors import summary
from tuner.workers.utilisation import UtilisationMeter

ROLE = "coordinator"
LEASE_SECS = 10.0
_HEARTBEAT_INTERVAL_SECS = 2.5

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Activity:
    """Contents of the next heartbeat."""

    role: str = "standby"
    text: str = "starting"
    job_id: int | None = None
    device: dict[str, Any] = field(default_factory=dict)


class CoordinatorLease:
    """Lease of the coordinator, which this process may hold, and the heartbeat of this process.

    Inside its context, a thread renews the lease and reports the process every few seconds. It is
    a thread because the event loop may be busy, or wait for a database, for longer than a lease
    lasts. Methods may be called from any thread.

    Attributes:
        host: Name of this machine.
        name: Name of this process, different from that of every other.
        meter: Measures the utilisation of the workers in the current role.
    """

    def __init__(self, engine: Engine) -> None:
        self._sessions = database.sessions(engine)
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
            held = leases.acquire(session, ROLE, self.name, LEASE_SECS)
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
        try:
            with self._sessions.begin() as session:
                renewed = leases.renew(session, held, LEASE_SECS)
        except SQLAlchemyError as error:
            # The lease is held until another process acquires it; the next renewal may succeed.
            _LOG.warning("cannot renew the lease: %s", summary(error))
            return
        if not renewed and held == self._held:
            self._is_lost = True

    def _report(self) -> None:
        activity = self._activity
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
