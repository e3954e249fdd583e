"""Leases of the jobs that a command tunes, which expire after its process was killed."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from records import database
from records.errors import LeaseLost
from records.service import leases
from records.service.leases import HeldLease
from tuner import interrupts
from tuner.errors import WorkError, summary
from tuner.files.process_tags import has_ended, process_tag

_POLL_INTERVAL_SECS = 0.25

_LOG = logging.getLogger(__name__)


class JobLeases:
    """Leases of one command, a lease for each of its jobs.

    Args:
        engine: The database.
        writers: Factory of the sessions of the command, which from now on commit only while no
            other process has acquired a lease that the command held.
    """

    def __init__(self, engine: Engine, writers: sessionmaker[Session]) -> None:
        self._sessions = database.sessions(engine)
        self._held: dict[int, HeldLease] = {}
        # A host name and a process id tell people which process it is, the tag tells machines.
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{process_tag()}"
        event.listen(writers, "before_commit", self._check)

    @contextmanager
    def holding(self, job_ids: Sequence[int]) -> Iterator[None]:
        """Hold the leases of jobs inside; the caller renews them with :meth:`keep`.

        Waits for a lease until it expires or its holder renews it. A holder on this machine that
        has ended is not waited for.

        Raises:
            WorkError: If another process tunes one of the jobs, or acquired the lease of one.
        """
        try:
            for job_id in job_ids:
                self._held[job_id] = self._acquire(job_id)
            yield
        except LeaseLost as error:
            raise WorkError(f"{error}: this one was stopped for longer than its lease") from error
        finally:
            self._release()

    async def keep(self) -> None:
        """Renew the leases until cancelled.

        A task of the loop that tunes: a loop that hangs loses them. A lease that expired is renewed
        as long as no other process has acquired it.
        """
        while True:
            await asyncio.sleep(leases.RENEWAL_INTERVAL_SECS)
            try:
                with self._sessions.begin() as session:
                    # It may happen during a measurement, which a wait for the disk would disturb.
                    database.defer_sync(session)
                    for held in self._held.values():
                        leases.renew(session, held, leases.LEASE_SECS)
            except SQLAlchemyError as error:
                _LOG.warning("cannot renew the leases of jobs: %s", summary(error))

    def _acquire(self, job_id: int) -> HeldLease:
        role = f"{leases.JOB_PREFIX}{job_id}"
        seen = None
        while True:
            with self._sessions.begin() as session:
                other = leases.unreleased(session, role)
                if other is not None and has_ended(other.holder.rpartition(":")[2]):
                    leases.release(session, HeldLease(role, other.holder, other.epoch))
                held = leases.acquire(session, role, self._holder, leases.LEASE_SECS)
            if held is not None:
                return held
            if other is not None:
                seen = seen or other.expires
                if other.expires > seen:
                    host, pid, _ = other.holder.rsplit(":", 2)
                    raise WorkError(
                        f"process {pid} on {host} is tuning job {job_id}; wait for it to end"
                    )
            with interrupts.waiting():
                time.sleep(_POLL_INTERVAL_SECS)

    def _release(self) -> None:
        released, self._held = self._held, {}
        try:
            with self._sessions.begin() as session:
                for held in released.values():
                    leases.release(session, held)
        except SQLAlchemyError as error:
            _LOG.warning("cannot release the leases of jobs, they will expire: %s", summary(error))

    def _check(self, session: Session) -> None:
        """Refuse a commit once another process has acquired a lease.

        Raises:
            LeaseLost: In that case.
        """
        for job_id, held in self._held.items():
            if not leases.is_current(session, held):
                raise LeaseLost(f"another process is tuning job {job_id} now")
