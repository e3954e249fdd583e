"""Connections end what takes too long, and fail soon when packets are lost."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import Engine, exc, make_url, text

from records import database
from records.storage import connections
from records.storage.connections import Limits

QUICK = Limits(pool_size=1, max_overflow=0, wait_secs=0.05, statement_secs=0.1, lock_secs=0.1)
# A statement that takes SQLite minutes.
COUNT = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000)
SELECT count(*) FROM n
"""
# PostgreSQL tells a transaction that took too long from a statement.
_ENDED = (exc.OperationalError, exc.InternalError)


@pytest.fixture
def quick(url: str) -> Iterator[Engine]:
    """An engine with short time-outs, on each kind of database in turn."""
    engine = database.open_database(url, replace(QUICK, transaction_secs=0.1))
    yield engine
    engine.dispose()


def test_a_statement_that_takes_too_long_ends(quick: Engine) -> None:
    """It fails as an outage does, and the connection works again at once."""
    slow = COUNT if quick.dialect.name == "sqlite" else "SELECT pg_sleep(60)"
    started = time.monotonic()
    for _ in range(2):
        with quick.connect() as connection, pytest.raises(_ENDED):
            connection.execute(text(slow))
    with quick.connect() as connection:
        assert connection.execute(text("SELECT 1")).scalar() == 1

    assert time.monotonic() - started < 50.0


def test_a_deadline_ends_with_its_transaction(sqlite_url: str) -> None:
    """A look-up without a transaction is not ended by the deadline of the one before."""
    engine = database.open_database(sqlite_url, replace(QUICK, transaction_secs=0.02))
    with database.sessions(engine)() as session:
        session.execute(text("SELECT 1"))
    time.sleep(0.03)
    with database.lookups(engine)() as session:
        few = text(COUNT.replace("1000000000", "100000"))
        assert session.execute(few).scalar() == 100_000
    engine.dispose()


def test_sqlite_keeps_as_many_pages_as_it_may(sqlite_url: str) -> None:
    """The limit holds for each connection; SQLite reports KiB as a negative number."""
    engine = database.open_database(sqlite_url, replace(QUICK, cache_bytes=8 << 20))
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA cache_size")).scalar() == -8192
    engine.dispose()


def test_the_pool_does_not_grow(quick: Engine) -> None:
    """A request for one connection too many fails soon."""
    with quick.connect(), pytest.raises(exc.TimeoutError), quick.connect():
        pass
    other = database.with_limits(quick, QUICK)
    with quick.connect(), other.connect() as connection:
        assert connection.execute(text("SELECT 1")).scalar() == 1
    other.dispose()


def test_a_lock_is_not_waited_for_long(postgres_url: str) -> None:
    """The second of two transactions that change one row fails soon on PostgreSQL."""
    engine = database.open_database(postgres_url, replace(QUICK, max_overflow=1, statement_secs=9))
    insert = text("INSERT INTO lease (name, holder, epoch, expires) VALUES ('a', 'b', 1, now())")
    with engine.connect() as first, engine.connect() as second:
        first.execute(insert)
        with pytest.raises(exc.OperationalError, match="lock timeout"):
            second.execute(insert)
    engine.dispose()


def test_a_url_keeps_its_own_time_outs(postgres_url: str) -> None:
    """Time-outs of the network in a URL replace the defaults."""
    url = make_url(postgres_url).set(drivername="postgresql+psycopg")
    engine = connections.connect(url.update_query_dict({"keepalives_idle": "77"}))
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        parameters = driver.info.get_parameters()
    engine.dispose()

    assert parameters["keepalives_idle"] == "77"
    assert parameters["tcp_user_timeout"] == "15000"
