"""The lease of the coordinator, and the names of processes."""

import threading
import time

import pytest
from sqlalchemy import select

from records.service import leases, workers
from records.service.service_models import Worker
from tuner.context import Context
from tuner.service import coordinator_lease
from tuner.service.coordinator_lease import CoordinatorLease


def test_processes_with_the_same_host_and_process_id_are_different(context: Context) -> None:
    """One of two containers holds the lease, and each has a row of its own."""
    first, second = CoordinatorLease(context.engine), CoordinatorLease(context.engine)
    with first, second:
        assert first.acquire() is not None
        assert second.acquire() is None
        with context.sessions() as session:
            names = session.scalars(select(Worker.name)).all()
            alive = [workers.is_alive(worker) for worker in workers.list_workers(session)]

    assert len(set(names)) == 2
    assert alive == [True, True]
    assert all(name.startswith(f"{first.host}:") for name in names)


def expiry(context: Context) -> float:
    """Return the age of the lease, seconds."""
    with context.readers() as session:
        age = leases.age_secs(session, leases.COORDINATOR, leases.LEASE_SECS)
    assert age is not None
    return age


def test_a_lease_is_renewed_while_the_main_loop_makes_progress(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that hangs loses it, and an announced step keeps it for as long as it said."""
    monkeypatch.setattr(coordinator_lease, "_HEARTBEAT_INTERVAL_SECS", 0.05)
    stalled = threading.Event()
    with CoordinatorLease(context.engine, max_stall_secs=0.3, on_stall=stalled.set) as lease:
        assert lease.acquire() is not None
        lease.report_progress(within_secs=1.0)
        time.sleep(0.7)
        assert expiry(context) < 0.5
        assert not stalled.is_set()
        for _ in range(5):
            lease.report_progress()
            time.sleep(0.1)
        assert not stalled.is_set()

        assert stalled.wait(5.0)
        before = expiry(context)
        time.sleep(0.3)
        assert expiry(context) > before + 0.2

        with context.readers() as session:
            (worker,) = workers.list_workers(session)
        age = workers.progress_age_secs(worker)
        assert workers.is_alive(worker)
        assert age is not None
        assert age > 0.3


def test_no_process_has_a_lease_that_was_released(context: Context) -> None:
    """The age is that of a held lease."""
    with CoordinatorLease(context.engine) as lease:
        assert lease.acquire() is not None
        lease.release()
        with context.readers() as session:
            assert leases.age_secs(session, leases.COORDINATOR, 10.0) is None
