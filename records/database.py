"""Opening of a records database, and its sessions."""

import os
import random
import re
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import URL, Engine, event, exc, make_url
from sqlalchemy.orm import Session, sessionmaker

from records import migrations
from records.errors import DatabaseFull, DatabaseUnusable
from records.storage.connections import BUSY_SECS, DEFAULT_LIMITS, Limits, connect

# Receives the seconds spent waiting for the write lock; returns whether to wait on.
OnLocked = Callable[[float], bool]
#: When to upgrade an older schema: by no means; in an SQLite file that no other process has open;
#: in any case. A database without tables gets the newest schema whatever this says.
Upgrade = Literal["never", "alone", "always"]
_ALONE_TIMEOUT_SECS = 5.0
# Codes of a full disk: of SQLite, which first makes a small file beside its own, and of PostgreSQL.
_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE, "53100"}


def open_database(
    url: str, limits: Limits = DEFAULT_LIMITS, *, upgrade: Upgrade = "never"
) -> Engine:
    """Open a database, creating its tables if it has none.

    Several processes may open the same new database at once.

    A committed transaction survives the crash of any process and a power failure, on PostgreSQL
    with its default settings; :func:`defer_sync` is the exception.

    Args:
        url: ``sqlite:///PATH`` or ``postgresql://USER:PASSWORD@HOST/NAME``.
        limits: Limits on the connections.
        upgrade: When to upgrade an older schema.

    Returns:
        An engine shared by all threads; the caller disposes of it.

    Raises:
        DatabaseUnusable: If it cannot be reached or written, or is not a records database.
        SchemaTooNew: If a newer subgraph-tuner has migrated it.
        SchemaTooOld: If it has to be upgraded, and must not be upgraded now.
    """
    shown = redact(url)
    engine = _connect(url, limits, _prepare_file)
    with _reported(engine, shown):
        state = migrations.state_of(engine, shown)
        if state == "older" and upgrade != "always":
            _check_alone(engine, shown, upgrade)
        if engine.dialect.name == "sqlite":
            _switch_to_wal(engine)
        if state != "current":
            migrations.migrate(engine, shown)
    return engine


def connect_existing(url: str) -> Engine:
    """Return an engine of an existing database, whatever its schema is.

    Raises:
        FileNotFoundError: If it is an SQLite file that does not exist.
        DatabaseUnusable: If it cannot be reached, or is not a database.
    """
    engine = _connect(url, DEFAULT_LIMITS, _require_file)
    with _reported(engine, redact(url)):
        migrations.revision_of(engine)
    return engine


def check_schema(engine: Engine) -> None:
    """Check that the schema is still the one that this process opened.

    Raises:
        SchemaTooNew: If a newer version has upgraded the database.
        SchemaTooOld: If an older database has taken its place.
    """
    reading = engine.execution_options(sqlite_begin="BEGIN", postgresql_readonly=True)
    with reading.connect() as connection:
        migrations.check_current(connection, redact(engine.url.render_as_string()))


def watch_schema(maker: sessionmaker[Session], interval_secs: float) -> None:
    """Have the sessions of a factory commit only while the schema is that of this process.

    Args:
        interval_secs: Time for which an answer holds. Once another schema was seen, no session
            commits any more.
    """
    watch = _SchemaWatch(interval_secs)
    event.listen(maker, "before_commit", watch.check)


@dataclass
class _SchemaWatch:
    interval_secs: float
    due: float = 0.0

    def check(self, session: Session) -> None:
        """Check the schema before a commit, if the last answer is old.

        Raises:
            SchemaTooNew: If a newer version has upgraded the database.
            SchemaTooOld: If an older database has taken its place.
        """
        if time.monotonic() < self.due:
            return
        self.due = 0.0
        connection = session.connection()
        migrations.check_current(connection, redact(connection.engine.url.render_as_string()))
        self.due = time.monotonic() + self.interval_secs


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


def defer_sync(session: Session) -> None:
    """Let the transaction that a session is about to begin not wait for the disk, on SQLite.

    It survives the crash of any process. A power failure can take it back, with all such
    transactions since the last one that waits: that one writes them as well.
    """
    session.connection(execution_options={"sqlite_synchronous": "NORMAL"})


def end_idle_transactions(engine: Engine, secs: float = 5.0) -> None:
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


def _connect(url: str, limits: Limits, prepare: Callable[[str | None], None]) -> Engine:
    """Return the engine of a URL, after the preparation of its file if it is one."""
    shown = redact(url)
    try:
        parsed = _with_driver(make_url(url))
        if parsed.get_backend_name() == "sqlite":
            prepare(parsed.database)
        return connect(parsed, limits)
    except ModuleNotFoundError as error:
        hint = "install the extra postgresql"
        raise DatabaseUnusable(f"cannot use {shown}: no module {error.name}; {hint}") from error
    except FileNotFoundError:
        raise
    except (exc.ArgumentError, OSError) as error:
        raise DatabaseUnusable(f"cannot use {shown}: {_one_line(error)}") from error


@contextmanager
def _reported(engine: Engine, shown: str) -> Iterator[None]:
    """Turn errors of the driver into ours, and close the connections on any error."""
    try:
        yield
    except (exc.DBAPIError, sqlite3.Error) as error:
        engine.dispose()
        cause = error.orig if isinstance(error, exc.DBAPIError) else error
        codes = {getattr(cause, name, None) for name in ("sqlite_errorcode", "sqlstate")}
        kind = DatabaseFull if codes & _FULL else DatabaseUnusable
        raise kind(f"cannot use {shown}: {_one_line(cause)}") from error
    except BaseException:
        engine.dispose()
        raise


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
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:  # below /proc, for example
        raise PermissionError(f"{folder} cannot be made") from error
    # SQLite opens a read-only file without an error and fails at the first write, hours later.
    for required in (folder, Path(path)):
        if required.exists() and not os.access(required, os.W_OK):
            raise PermissionError(f"{required} is not writable")
    _make_private(Path(path))


def _make_private(path: Path) -> None:
    """Keep other users out of a database of this user; its group only if files inherit that."""
    is_shared = path.parent.stat().st_mode & stat.S_ISGID
    others = stat.S_IRWXO | (0 if is_shared else stat.S_IRWXG)
    if not path.exists():
        path.touch(mode=0o660 & ~others)
    for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        with suppress(OSError):  # SQLite removes the others when it closes them
            status = file.stat()
            if status.st_uid == os.geteuid() and status.st_mode & others:
                file.chmod(stat.S_IMODE(status.st_mode) & ~others)


def _require_file(path: str | None) -> None:
    if path and path != ":memory:" and not Path(path).is_file():
        raise FileNotFoundError(2, "the database does not exist", path)


def _check_alone(engine: Engine, shown: str, upgrade: Upgrade) -> None:
    """Make sure that this process alone has an SQLite file open, if that allows an upgrade.

    Raises:
        SchemaTooOld: If it does not.
    """
    deadline = time.monotonic() + _ALONE_TIMEOUT_SECS
    while upgrade == "alone" and engine.dialect.name == "sqlite" and time.monotonic() < deadline:
        if _leaves_wal(engine) or migrations.state_of(engine, shown) == "current":
            return
        # Another process that just started may wait for this one in the same way.
        engine.dispose()
        time.sleep(random.uniform(0.05, 0.2))
    raise migrations.too_old(migrations.revision_of(engine), shown)


def _leaves_wal(engine: Engine) -> bool:
    """Return whether a file can leave the WAL mode, which every other open connection prevents."""
    connection = engine.raw_connection()
    try:
        connection.cursor().execute("PRAGMA busy_timeout=0")
        connection.cursor().execute("PRAGMA journal_mode=DELETE").fetchall()
    except sqlite3.OperationalError:
        return False
    else:
        return True
    finally:
        connection.cursor().execute(f"PRAGMA busy_timeout={BUSY_SECS * 1000}")
        connection.close()


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
