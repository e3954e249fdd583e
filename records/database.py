"""Opening, sessions and schema of a records database."""

import os
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, event, exc, make_url
from sqlalchemy.orm import Session, sessionmaker

from records import migrations
from records.connections import BUSY_SECS, DEFAULT_LIMITS, Limits, connect
from records.errors import DatabaseUnusable

# Receives the seconds spent waiting for the write lock; returns whether to wait on.
OnLocked = Callable[[float], bool]


def open_database(url: str, limits: Limits = DEFAULT_LIMITS) -> Engine:
    """Open a database and bring its schema up to date, creating what is missing.

    Several processes may open the same new database at once.

    A committed transaction survives the crash of any process. It survives a power failure on
    PostgreSQL with its default settings; on SQLite the last commits may be lost, see
    :mod:`records.connections`, but the file stays consistent.

    Args:
        url: ``sqlite:///PATH`` or ``postgresql://USER:PASSWORD@HOST/NAME``.
        limits: Limits on the connections.

    Returns:
        An engine shared by all threads; the caller disposes of it.

    Raises:
        DatabaseUnusable: If it cannot be reached or written, or is not a records database.
        SchemaTooNew: If a newer subgraph-tuner has migrated it.
    """
    shown = redact(url)
    try:
        parsed = _with_driver(make_url(url))
        if parsed.get_backend_name() == "sqlite":
            _prepare_file(parsed.database)
        engine = connect(parsed, limits)
    except ModuleNotFoundError as error:
        hint = "install the extra postgresql"
        raise DatabaseUnusable(f"cannot use {shown}: no module {error.name}; {hint}") from error
    except (exc.ArgumentError, OSError) as error:
        raise DatabaseUnusable(f"cannot use {shown}: {_one_line(error)}") from error
    try:
        current = migrations.is_current(engine, shown)
        if engine.dialect.name == "sqlite":
            _switch_to_wal(engine)
        if not current:
            migrations.migrate(engine, shown)
    except (exc.DBAPIError, sqlite3.Error) as error:
        engine.dispose()
        cause = error.orig if isinstance(error, exc.DBAPIError) else error
        raise DatabaseUnusable(f"cannot use {shown}: {_one_line(cause)}") from error
    except BaseException:
        engine.dispose()
        raise
    return engine


def sessions(
    engine: Engine, *, read_only: bool = False, on_locked: OnLocked | None = None
) -> sessionmaker[Session]:
    """Return a factory of sessions whose rows stay readable after a commit.

    On SQLite a session acquires the only write lock at its first statement, so that it cannot
    fail half-way; keep it short, and never hold one during a measurement.

    Args:
        engine: An opened database.
        read_only: If true, the sessions neither wait for writers nor block them.
        on_locked: Called every 30 seconds of waiting for the write lock of SQLite with the
            seconds waited; returns whether to wait on. None gives up after 30 seconds.
    """
    if read_only:
        engine = engine.execution_options(sqlite_begin="BEGIN", postgresql_readonly=True)
    if on_locked is not None:
        engine = engine.execution_options(sqlite_on_locked=on_locked)
    return sessionmaker(engine, expire_on_commit=False)


def with_limits(engine: Engine, limits: Limits) -> Engine:
    """Return another engine of an opened database, with connections and limits of its own."""
    return connect(engine.url, limits)


def end_idle_transactions(engine: Engine, secs: float) -> None:
    """Make the server abort transactions of this engine that are idle for ``secs``.

    A process that is suspended within a transaction keeps its locks, and its successor waits for
    them. SQLite has no such setting: the file stays locked until that process continues or dies.
    """
    if engine.dialect.name == "sqlite":
        return

    def limit(connection: Any, _record: object) -> None:
        connection.execute(f"SET idle_in_transaction_session_timeout = {round(secs * 1000)}")
        connection.commit()

    event.listen(engine, "connect", limit)
    engine.dispose()


def lookups(engine: Engine) -> sessionmaker[Session]:
    """Return a factory of sessions for single reads, which begin no transaction.

    On PostgreSQL a transaction costs more than the look-up of a row by its key.
    """
    if engine.dialect.name == "sqlite":
        return sessionmaker(engine.execution_options(sqlite_begin=None))
    return sessionmaker(engine.execution_options(isolation_level="AUTOCOMMIT"))


def redact(url: str) -> str:
    """Return a URL for messages, with every password replaced by ``***``."""
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError):
        return re.sub(r"//[^/]*@", "//***@", url)
    hidden = {name: "***" for name in parsed.query if "password" in name}
    return parsed.update_query_dict(hidden).render_as_string(hide_password=True)


def _with_driver(url: URL) -> URL:
    if url.drivername in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise exc.ArgumentError(f"use sqlite:// or postgresql://, not {url.drivername}://")
    return url


def _prepare_file(path: str | None) -> None:
    if not path or path == ":memory:":
        return
    folder = Path(path).parent
    folder.mkdir(parents=True, exist_ok=True)
    # SQLite opens a read-only file without an error and fails at the first write, hours later.
    for required in (folder, Path(path)):
        if required.exists() and not os.access(required, os.W_OK):
            raise PermissionError(f"{required} is not writable")


def _switch_to_wal(engine: Engine) -> None:
    deadline = time.monotonic() + BUSY_SECS
    while True:
        connection = engine.raw_connection()
        try:
            connection.cursor().execute("PRAGMA journal_mode=WAL").fetchall()
            return
        except sqlite3.OperationalError as error:
            # The switch needs an exclusive lock and ignores busy_timeout.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        finally:
            connection.close()


def _one_line(error: BaseException | None) -> str:
    return " ".join(str(error).split())
