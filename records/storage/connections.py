"""Engines: connections to SQLite and PostgreSQL, with time-outs and pools of a fixed size."""

import json
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import URL, Connection, Engine, create_engine, event, exc

#: Time that SQLite waits for a lock, seconds.
BUSY_SECS = 30
_CONNECT_SECS = 10
# Packets that are lost and not refused: a connection is given up after about 15 s without an
# answer of the other machine, whether it sends or waits. Local sockets ignore all of these.
_KEEPALIVE = {
    "connect_timeout": _CONNECT_SECS,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,  # milliseconds
}
# Version of PostgreSQL from which a transaction, not just a statement, can have a time-out.
_TRANSACTION_TIMEOUT_VERSION = 170_000
# Instructions of SQLite between two looks at the clock: about a millisecond.
_INSTRUCTIONS = 100_000
_BEGIN_WRITE = "BEGIN IMMEDIATE"
SYNCHRONOUS = "FULL"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on the connections of one engine; the times are in seconds.

    Attributes:
        pool_size: Connections that stay open.
        max_overflow: Further connections, each closed after its use.
        wait_secs: Time to wait for a connection while all are in use.
        statement_secs: Maximum duration of one statement; 0 for none. On PostgreSQL.
        lock_secs: Maximum time to wait for a lock; 0 for none. On PostgreSQL; SQLite waits for
            ``BUSY_SECS``.
        idle_secs: Maximum pause within a transaction; 0 for none. On PostgreSQL.
        transaction_secs: Maximum duration of a transaction; 0 for none. On SQLite, where it ends
            a statement that runs for longer, and on PostgreSQL from version 17 on.
        cache_bytes: Memory of each connection for pages of the file. On SQLite.
    """

    pool_size: int = 5
    max_overflow: int = 10
    wait_secs: float = 30.0
    statement_secs: float = 600.0
    lock_secs: float = 60.0
    idle_secs: float = 0.0
    transaction_secs: float = 0.0
    cache_bytes: int = 2 << 20


#: Limits of commands and workers, which have few connections and long transactions. A transaction
#: of a thousand trials changes more pages than SQLite keeps by default.
DEFAULT_LIMITS = Limits(cache_bytes=64 << 20)


def connect(url: URL, limits: Limits = DEFAULT_LIMITS) -> Engine:
    """Return the engine of a database, which connects when it is first used.

    Args:
        url: URL with a driver; what its query sets replaces the time-outs of the network.
        limits: Limits on the connections.
    """
    pool = {
        "pool_size": limits.pool_size,
        "max_overflow": limits.max_overflow,
        "pool_timeout": limits.wait_secs,
    }
    if url.get_backend_name() == "sqlite":
        is_memory = url.database in (None, "", ":memory:")  # one connection, which has no pool
        engine = create_engine(
            url,
            json_serializer=_dumps,
            connect_args={"timeout": BUSY_SECS},
            **({} if is_memory else pool),
        )
        event.listen(engine, "connect", partial(_configure_sqlite, limits))
        event.listen(
            engine, "begin", partial(_begin_sqlite, limits.transaction_secs, threading.local())
        )
        return engine
    arguments = {name: value for name, value in _KEEPALIVE.items() if name not in url.query}
    engine = create_engine(
        url, json_serializer=_dumps, pool_pre_ping=True, connect_args=arguments, **pool
    )
    event.listen(engine, "connect", partial(_configure_postgres, limits))
    return engine


def _plain(value: Any) -> Any:
    """Return a value of a type that is derived from one of JSON, as numpy's numbers are."""
    for plain in _PLAIN:
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


_PLAIN: tuple[type[Any], ...] = (str, float, int, list, tuple, dict)
_ENCODER = msgspec.json.Encoder(enc_hook=_plain)


def _dumps(value: Any) -> str:
    """Return a value as JSON, with null for infinity and NaN, which PostgreSQL refuses.

    Bytes, times and sets become text and lists: callers pass numbers, text, lists and dicts.

    Raises:
        TypeError: If it contains what JSON has no form for.
        ValueError: If it contains text that is not Unicode beside infinity or NaN.
    """
    try:
        return _ENCODER.encode(value).decode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False)


def _configure_postgres(limits: Limits, connection: Any, _record: object) -> None:
    timeouts = {
        "statement_timeout": limits.statement_secs,
        "lock_timeout": limits.lock_secs,
        "idle_in_transaction_session_timeout": limits.idle_secs,
    }
    if connection.info.server_version >= _TRANSACTION_TIMEOUT_VERSION:
        timeouts["transaction_timeout"] = limits.transaction_secs
    settings = ", ".join(
        f"set_config('{name}', '{round(secs * 1000)}', false)" for name, secs in timeouts.items()
    )
    connection.execute(f"SELECT {settings}")
    connection.commit()


def _configure_sqlite(limits: Limits, connection: Any, _record: object) -> None:
    # The driver begins transactions late and breaks savepoints; _begin_sqlite sends BEGIN instead.
    connection.isolation_level = None
    # In WAL mode, synchronous=NORMAL does not wait for the disk at each commit: a power failure
    # could take back an accepted job or a revoked token. See sqlite.org/pragma.html and ADR 0015.
    for pragma in (
        f"busy_timeout={BUSY_SECS * 1000}",
        f"synchronous={SYNCHRONOUS}",
        "foreign_keys=ON",
        f"cache_size=-{limits.cache_bytes >> 10}",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(transaction_secs: float, writer: threading.local, connection: Connection) -> None:
    # A deferred transaction that reads and then writes fails at once if another one wrote
    # in between (SQLITE_BUSY_SNAPSHOT ignores busy_timeout); an immediate one waits.
    options = connection.get_execution_options()
    begin = options.get("sqlite_begin", _BEGIN_WRITE)
    driver: Any = connection.connection.driver_connection
    # The deadline of an earlier transaction would end this one.
    driver.set_progress_handler(None, 0)
    if begin is None:
        return
    # SQLite changes it between transactions only.
    synchronous = options.get("sqlite_synchronous", SYNCHRONOUS)
    if connection.info.get("synchronous", SYNCHRONOUS) != synchronous:
        driver.execute(f"PRAGMA synchronous={synchronous}")
        connection.info["synchronous"] = synchronous
    # A transaction with a deadline is one of a request, whose statements run in several threads.
    is_sole_writer = begin == _BEGIN_WRITE and not transaction_secs
    if is_sole_writer:
        _check_only_writer(writer)
    _begin(connection, begin, options.get("sqlite_on_locked"))
    if is_sole_writer:
        writer.connection = weakref.ref(connection)
    if transaction_secs:
        driver.set_progress_handler(_deadline(transaction_secs), _INSTRUCTIONS)


def _check_only_writer(writer: threading.local) -> None:
    """Raise an error if this thread has a transaction open that writes: it would wait for itself.

    Raises:
        RuntimeError: In that case.
    """
    connection = getattr(writer, "connection", lambda: None)()
    if connection is not None and not connection.closed and connection.in_transaction():
        raise RuntimeError("this thread already has a transaction open that writes")


def _begin(connection: Connection, begin: str, on_locked: Callable[[float], bool] | None) -> None:
    started = time.monotonic()
    while True:
        try:
            connection.exec_driver_sql(begin)
            return
        except exc.OperationalError as error:
            waited_secs = time.monotonic() - started
            if on_locked is None or "locked" not in str(error.orig) or not on_locked(waited_secs):
                raise


def _deadline(secs: float) -> Callable[[], bool]:
    """Return a function that tells SQLite to interrupt a statement after a deadline."""
    deadline = time.monotonic() + secs
    return lambda: time.monotonic() > deadline
