"""A lease is one process's at a time, and what the last holder still writes is undone."""

import threading
import time

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from records import database, leases, targets
from records.errors import LeaseLost
from records.models import Target


def test_a_lease_has_one_holder(session: Session) -> None:
    """Nobody gets what somebody else has; who has it may ask again."""
    mine = leases.acquire(session, "coordinator", "a", 60)

    assert mine == leases.Held("coordinator", "a", 1)
    assert leases.acquire(session, "coordinator", "b", 60) is None
    assert leases.acquire(session, "another role", "b", 60) is not None
    assert leases.acquire(session, "coordinator", "a", 60) == leases.Held("coordinator", "a", 2)


def test_a_lease_that_ended_is_anybodys(session: Session) -> None:
    """Whoever takes it over has the next epoch, and the one before cannot renew."""
    mine = leases.acquire(session, "coordinator", "a", -1)
    theirs = leases.acquire(session, "coordinator", "b", 60)

    assert mine is not None
    assert theirs is not None
    assert theirs.epoch == mine.epoch + 1
    assert not leases.renew(session, mine, 60)
    assert leases.renew(session, theirs, 60)


def test_a_lease_that_is_released_is_free_at_once(session: Session) -> None:
    """A release by somebody who lost it changes nothing."""
    mine = leases.acquire(session, "coordinator", "a", 60)
    assert mine is not None
    leases.release(session, mine)
    theirs = leases.acquire(session, "coordinator", "b", 60)
    leases.release(session, mine)

    assert theirs is not None
    assert leases.acquire(session, "coordinator", "c", 60) is None


def test_what_a_former_holder_writes_is_undone(engine: Engine) -> None:
    """Its transaction fails when it commits, and leaves nothing."""
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
    """Between the check of the lease and the commit nobody else can get it."""
    sessions = database.sessions(engine)
    with sessions.begin() as session:
        mine = leases.acquire(session, "coordinator", "a", -1)
    assert mine is not None
    order: list[str] = []

    def take() -> None:
        with sessions.begin() as session:
            assert leases.acquire(session, "coordinator", "b", 60) is not None
        order.append("taken")

    with leases.fenced(engine, mine)() as session:
        targets.ensure_target(session, "kept", {})
        leases.check(session, mine)
        thread = threading.Thread(target=take)
        thread.start()
        time.sleep(0.3)
        order.append("committed")
        session.commit()
    thread.join()

    assert order == ["committed", "taken"]
