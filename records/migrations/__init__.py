"""Schema revisions: the one of a database, the newest, and the way from one to the other."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text

from records.errors import DatabaseUnusable, SchemaTooNew, SchemaTooOld
from records.models import Base
from records.service import service_models  # noqa: F401  declares the other half of the tables

SchemaState = Literal["empty", "older", "current"]

_FOLDER = Path(__file__).parent
_LOCK_KEY = 0x5475_6E65  # arbitrary constant: key of the advisory lock of a database

# Versions of PostgreSQL differ in the time-outs that they have.
_WITHOUT_TIMEOUTS = text(
    "SELECT set_config(name, '0', true) FROM pg_settings"
    " WHERE name IN ('lock_timeout', 'statement_timeout', 'transaction_timeout')"
)


def newest() -> str:
    """Return the newest revision that this version of the program knows."""
    return _known()[0]


def revision_of(engine: Engine) -> str | None:
    """Return the schema revision of a database; None if it has no tables of this program."""
    with _reading(engine) as connection:
        return MigrationContext.configure(connection).get_current_revision()


def state_of(engine: Engine, shown: str) -> SchemaState:
    """Return the state of a schema; only reads, and does not wait for writers.

    Args:
        engine: The database.
        shown: Name of the database in messages, without a password.

    Raises:
        SchemaTooNew: If its revision is not in this folder.
        DatabaseUnusable: If it is an SQLite file with tables of another program.
    """
    with _reading(engine) as connection:
        return _state(connection, shown)


def check_current(connection: Connection, shown: str) -> None:
    """Check that a schema is the one that this process was written for.

    A process that runs while the schema changes must not read or write any more.

    Raises:
        SchemaTooNew: If a newer version has upgraded the database.
        SchemaTooOld: If the database is older, for instance a backup that was restored.
    """
    if _state(connection, shown) != "current":
        raise too_old(MigrationContext.configure(connection).get_current_revision(), shown)


def too_old(revision: str | None, shown: str) -> SchemaTooOld:
    """Return the error about a database that has to be upgraded first."""
    return SchemaTooOld(
        f"{shown} has schema revision {revision}, and this version needs {newest()}:"
        " back it up, stop the processes that use it, and run `tuner db upgrade`"
    )


def migrate(engine: Engine, shown: str) -> None:
    """Create the tables of the models, or upgrade older ones to them, one process at a time.

    An upgrade ends every lease in the same transaction, so that a coordinator of an older version
    cannot write to the new schema.

    Raises:
        SchemaTooNew: If a newer version has migrated the database in between.
    """
    with _transaction(engine) as connection:
        state = _state(connection, shown)
        if state == "empty":
            Base.metadata.create_all(connection, checkfirst=False)
            command.stamp(_config(connection), "head")
        elif state == "older":
            command.upgrade(_config(connection), "head")
            connection.execute(text("UPDATE lease SET epoch = epoch + 1, holder = ''"))


@contextmanager
def _transaction(engine: Engine) -> Iterator[Connection]:
    """Open a transaction with exclusive access to the schema."""
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            with connection.begin():
                # Another migration, or a change of a large table, may take its time.
                connection.execute(_WITHOUT_TIMEOUTS)
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
                yield connection
            return
        # A table that SQLite cannot alter is copied and dropped while others refer to it. The
        # pragma has no effect inside a transaction.
        driver: Any = connection.connection.driver_connection
        driver.execute("PRAGMA foreign_keys=OFF")
        try:
            with connection.begin():
                driver.set_progress_handler(None, 0)
                yield connection
                broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
                if broken:
                    raise DatabaseUnusable(f"a migration left dangling references: {broken[0]}")
        finally:
            driver.execute("PRAGMA foreign_keys=ON")


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.attributes["connection"] = connection
    # ConfigParser would interpolate a percent sign in the path.
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    return config


@cache
def _known() -> tuple[str, frozenset[str]]:
    """Return the newest revision and all of them, as they were when this process started."""
    script = ScriptDirectory.from_config(_config())
    revisions = frozenset(known.revision for known in script.walk_revisions())
    return script.get_current_head() or "", revisions


@contextmanager
def _reading(engine: Engine) -> Iterator[Connection]:
    with engine.execution_options(sqlite_begin="BEGIN").connect() as connection:
        yield connection


def _state(connection: Connection, shown: str) -> SchemaState:
    revisions = set(MigrationContext.configure(connection).get_current_heads())
    head, known = _known()
    if revisions - known:
        raise SchemaTooNew(
            f"{shown} has schema revision {', '.join(sorted(revisions - known))}, which this"
            f" version, whose newest is {head}, does not know: upgrade subgraph-tuner, or use a new"
            " database if this one is from before the first release"
        )
    if not revisions and connection.dialect.name == "sqlite":
        tables = set(inspect(connection).get_table_names()) - {"alembic_version"}
        if tables:
            raise DatabaseUnusable(f"{shown} is a database of another program")
    if not revisions:
        return "empty"
    return "current" if revisions == {head} else "older"
