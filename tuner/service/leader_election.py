"""A process of the service as others see it: it says what it does, and keeps its lease.

A thread does both, because the process itself may wait for a measurement for a long time.
"""

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
_BEAT_SECS = 2.5

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Doing:
    """What this process does now."""

    role: str = "standby"
    activity: str = "starting"
    job_id: int | None = None
    device: dict[str, Any] = field(default_factory=dict)


class CoordinatorLease:
    """Reports this process, and renews the lease it holds, until it is left."""

    def __init__(self, engine: Engine) -> None:
        self._sessions = database.sessions(engine)
        self._doing = _Doing()
        self._held: HeldLease | None = None
        self._is_lost = False
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)
        self.host = socket.gethostname()
        # Two containers may have the same host name, and each of them a process 1.
        self.name = f"{self.host}:{os.getpid()}:{secrets.token_hex(4)}"
        self.meter = UtilisationMeter()

    def acquire(self) -> HeldLease | None:
        """Take the lease if nobody has it; it is kept from then on."""
        with self._sessions.begin() as session:
            held = leases.acquire(session, ROLE, self.name, LEASE_SECS)
        with self._lock:
            self._held, self._is_lost = held, False
        return held

    def release(self) -> None:
        """Give the lease back, if there is one and the database can be told."""
        with self._lock:
            held, self._held = self._held, None
        if held is None:
            return
        try:
            with self._sessions.begin() as session:
                leases.release(session, held)
        except SQLAlchemyError as error:
            _LOG.warning("cannot give the lease back, it ends by itself: %s", summary(error))

    def check(self) -> None:
        """Raise if the lease is somebody else's by now.

        Raises:
            LeaseLost: If so.
        """
        if self._is_lost:
            raise LeaseLost(f"another process is {ROLE} now")

    def tell(self, job_id: int | None, activity: str) -> None:
        """Say what goes on; others see it within seconds."""
        self._doing = replace(self._doing, job_id=job_id, activity=activity)

    def become(self, role: str, activity: str, device: dict[str, Any] | None = None) -> None:
        """Change the role, which others see at once where the database can be told."""
        if role != self._doing.role:
            # Workers that are gone do not say that their calls have ended.
            self.meter = UtilisationMeter()
        self._doing = _Doing(role, activity, None, device or {})
        self._report()

    def _run(self) -> None:
        while not self._stopping.wait(_BEAT_SECS):
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
            # Ours until somebody else takes it: with the next beat we may have it still.
            _LOG.warning("cannot renew the lease: %s", summary(error))
            return
        if not renewed and held == self._held:
            self._is_lost = True

    def _report(self) -> None:
        doing = self._doing
        said = workers.WorkerReport(
            name=self.name,
            host=self.host,
            pid=os.getpid(),
            role=doing.role,
            activity=doing.activity,
            device=doing.device,
            job_id=doing.job_id,
            busy_secs=self.meter.busy_secs,
            busy_share=self.meter.share(),
        )
        try:
            with self._sessions.begin() as session:
                workers.report(session, said)
        except (SQLAlchemyError, RecordsError) as error:
            _LOG.warning("cannot report: %s", summary(error))

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
            _LOG.warning("cannot say goodbye: %s", summary(failure))
