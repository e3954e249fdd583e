"""Migration of an opened database to the newest schema revision."""

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

_LOCK_KEY = 0x5475_6E65  # arbitrary constant: key of the advisory lock of a database

# Versions of PostgreSQL differ in the time-outs that they have.
_WITHOUT_TIMEOUTS = text(
    "SELECT set_config(name, '0', true) FROM pg_settings"
    " WHERE name IN ('lock_timeout', 'statement_timeout', 'transaction_timeout')"
)


def is_current(engine: Engine, shown: str) -> bool:
    """Return whether the schema is the newest; only reads, and does not wait for writers.

    Args:
        engine: The database.
        shown: Name of the database in messages, without a password.

    Raises:
        SchemaTooNew: If its revision is not in this folder.
        DatabaseUnusable: If it is an SQLite file with tables of another program.
    """
    with engine.execution_options(sqlite_begin="BEGIN").connect() as connection:
        return _is_current(connection, ScriptDirectory.from_config(_config()), shown)


def migrate(engine: Engine, shown: str) -> None:
    """Run the missing migrations in one transaction, one process at a time.

    Raises:
        SchemaTooNew: If a newer version has migrated the database in between.
    """
    with _transaction(engine) as connection:
        if not _is_current(connection, ScriptDirectory.from_config(_config()), shown):
            command.upgrade(_config(connection), "head")


def downgrade(engine: Engine, revision: str) -> None:
    """Downgrade a schema; data that the older revision cannot hold is lost."""
    with _transaction(engine) as connection:
        command.downgrade(_config(connection), revision)


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
