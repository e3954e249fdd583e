"""One process at a time holds a lease, and writes of a former holder are rolled back."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from records import database, targets
from records.errors import LeaseLost
from records.models import Target
from records.service import leases
from records.service.service_models import Lease

_N_RACERS = 8


def test_a_lease_has_one_holder(session: Session) -> None:
    """Only the present holder can acquire a lease that has not expired."""
    mine = leases.acquire(session, "coordinator", "a", 60)

    assert mine == leases.HeldLease("coordinator", "a", 1)
    assert leases.acquire(session, "coordinator", "b", 60) is None
    assert leases.acquire(session, "another role", "b", 60) is not None
    assert leases.acquire(session, "coordinator", "a", 60) == leases.HeldLease(
        "coordinator", "a", 2
    )


def test_an_expired_lease_is_free(session: Session) -> None:
    """The next holder gets the next epoch, and the previous one cannot renew."""
    mine = leases.acquire(session, "coordinator", "a", -1)
    theirs = leases.acquire(session, "coordinator", "b", 60)

    assert mine is not None
    assert theirs is not None
    assert theirs.epoch == mine.epoch + 1
    assert not leases.renew(session, mine, 60)
    assert leases.renew(session, theirs, 60)


def test_a_lease_that_is_released_is_free_at_once(session: Session) -> None:
    """A release by a former holder changes nothing."""
    mine = leases.acquire(session, "coordinator", "a", 60)
    assert mine is not None
    leases.release(session, mine)
    theirs = leases.acquire(session, "coordinator", "b", 60)
    leases.release(session, mine)

    assert theirs is not None
    assert leases.acquire(session, "coordinator", "c", 60) is None


@pytest.mark.parametrize("expired", [False, True], ids=["new", "expired"])
def test_one_of_many_processes_acquires_a_lease(engine: Engine, expired: bool) -> None:
    """A new lease and an expired one each get exactly one holder."""
    sessions = database.sessions(engine)
    if expired:
        with sessions.begin() as session:
            assert leases.acquire(session, "coordinator", "the last", -1)
    barrier = threading.Barrier(_N_RACERS)

    def ask(number: int) -> leases.HeldLease | None:
        barrier.wait(20)
        with sessions.begin() as session:
            return leases.acquire(session, "coordinator", f"racer {number}", 60)

    with ThreadPoolExecutor(_N_RACERS) as pool:
        got = [held for held in pool.map(ask, range(_N_RACERS)) if held is not None]

    assert [held.epoch for held in got] == [2 if expired else 1]
    with sessions() as session:
        assert session.query(Lease).one().holder == got[0].holder


def test_writes_of_a_former_holder_are_rolled_back(engine: Engine) -> None:
    """The transaction fails at its commit."""
    sessions = database.sessions(engine)
    with sessions.begin() as session:
        mine = leases.acquire(session, "coordinator", "a", -1)
    assert mine is not None
    fenced = leases.fenced(engine, mine)
    with fenced.begin() as session:
        targets.ensure_target(session, "kept", {})
    with sessions.begin() as session:
        assert leases.acquire(session, "coordinator", "b", 60) is not None
    with pytest.raises(LeaseLost, match="another process"), fenced.begin() as session:
        targets.ensure_target(session, "too late", {})

    with sessions() as session:
        assert [row.spec for row in session.query(Target)] == ["kept"]


def test_a_takeover_waits_for_a_commit_that_was_checked(engine: Engine) -> None:
    """No process acquires the lease between its check and the commit."""
    sessions = database.sessions(engine)
    with sessions.begin() as session:
        mine = leases.acquire(session, "coordinator", "a", -1)
    assert mine is not None
    order: list[str] = []
    asking = threading.Event()

    def take() -> None:
        with sessions.begin() as session:
            asking.set()
            assert leases.acquire(session, "coordinator", "b", 60) is not None
        order.append("acquired")

    with leases.fenced(engine, mine)() as session:
        targets.ensure_target(session, "kept", {})
        leases.check(session, mine)
        thread = threading.Thread(target=take)
        thread.start()
        assert asking.wait(10)
        # The other process keeps waiting for the lease.
        thread.join(0.3)
        assert thread.is_alive()
        order.append("committed")
        session.commit()
    thread.join()

    assert order == ["committed", "acquired"]
