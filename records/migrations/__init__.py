"""Brings the schema of an opened database to the newest revision."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text

from records.errors import DatabaseUnusable, SchemaTooNew

_LOCK_KEY = 0x5475_6E65  # any constant of ours: one advisory lock per database


def is_current(engine: Engine, shown: str) -> bool:
    """Return whether the schema is the newest; only reads, and waits for no writer.

    Args:
        engine: The database.
        shown: Its name in messages, without a password.

    Raises:
        SchemaTooNew: If it has a revision that is not in this folder.
        DatabaseUnusable: If it is an SQLite file with tables of another program.
    """
    with engine.execution_options(sqlite_begin="BEGIN").connect() as connection:
        return _is_current(connection, ScriptDirectory.from_config(_config()), shown)


def migrate(engine: Engine, shown: str) -> None:
    """Run the missing migrations in one transaction, one process at a time.

    Raises:
        SchemaTooNew: As ``is_current`` does, if another process was faster.
    """
    with _transaction(engine) as connection:
        if not _is_current(connection, ScriptDirectory.from_config(_config()), shown):
            command.upgrade(_config(connection), "head")


def downgrade(engine: Engine, revision: str) -> None:
    """Take a schema back to an older revision; what only newer ones can hold is lost."""
    with _transaction(engine) as connection:
        command.downgrade(_config(connection), revision)


@contextmanager
def _transaction(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that has the schema for itself."""
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            with connection.begin():
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
                yield connection
            return
        # A table that SQLite cannot alter is copied and dropped, and others refer to it. The
        # switch does nothing inside a transaction.
        driver: Any = connection.connection.driver_connection
        driver.execute("PRAGMA foreign_keys=OFF")
        try:
            with connection.begin():
                yield connection
                broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
                if broken:
                    raise DatabaseUnusable(f"a migration left dangling references: {broken[0]}")
        finally:
            driver.execute("PRAGMA foreign_keys=ON")


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.attributes["connection"] = connection
    # A percent sign in the path would be an interpolation to ConfigParser.
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config


def _is_current(connection: Connection, script: ScriptDirectory, shown: str) -> bool:
    revisions = set(MigrationContext.configure(connection).get_current_heads())
    unknown = revisions - {known.revision for known in script.walk_revisions()}
    if unknown:
        raise SchemaTooNew(
            f"{shown} has schema revision {', '.join(sorted(unknown))}, which this version"
            " does not know: upgrade subgraph-tuner"
        )
    if not revisions and connection.dialect.name == "sqlite":
        tables = set(inspect(connection).get_table_names()) - {"alembic_version"}
        if tables:
            raise DatabaseUnusable(f"{shown} is a database of another program")
    return revisions == set(script.get_heads())
